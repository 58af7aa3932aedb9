"""Answers to `beyond_nccl`: gradients that travel without the collectives' library, beside PyTorch's best."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from scripts.rendering.markup import Table, Tile, escape, times
from scripts.views.comparison import OWN, TRIED, cells_of, contenders, device_bound, fastest
from scripts.views.comparison_tables import (
    COLUMNS,
    OUTSIDE,
    Column,
    contender_table,
    extremes,
    fixed,
    missing,
    number,
    setting,
)
from scripts.views.data import select
from scripts.views.data_parallel import OURS, PYTORCH
from scripts.views.progress import progress, verdict, yours

TRIED_AT = "100"
"""The bucket size at which all that was tried stands beside plain buckets, MB."""
TRIED_COLUMNS = [
    *(column for column in COLUMNS if column.title not in ("busy / %", "peak")),
    Column("over plain", "", number("over_bucketed", 4), "over_bucketed"),
    Column("error", "", number("gradient_error", 2), "gradient_error"),
]
PARTS = {
    "stretched": "longer compute",
    "uncovered": "uncovered communication",
    "idle": "idle device",
}
"""What the profiled step of a contender has beyond the floor's."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["data_parallel"]
    rows = contenders(DataParallelTraining, table)
    if not len(rows):
        return {"steps": None, "missing": missing(table)}
    shown = [row.name for cell in cells_of(rows) for row in candidates(cell)]
    ours = select(rows.loc[shown], contender="peer_memory")
    names = ["bucketed", "peer_memory", *PYTORCH]
    return {
        "steps": contender_table(DataParallelTraining, table, rows.loc[shown], [*COLUMNS, OUTSIDE], names),
        "s": setting(DataParallelTraining, table, rows),
        "ours": bool(len(ours)),
        "gain": progress(DataParallelTraining, rows, PYTORCH, ["peer_memory"]),
        "over_bucketed": progress(DataParallelTraining, rows, ["bucketed"], ["peer_memory"]),
        "yours": yours(DataParallelTraining, rows, list(OURS)),
        "exposed": extremes(device_bound(ours), "exposed"),
        **parts(device_bound(rows)),
        **tried(table, rows),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """How much faster our step over copy engines is than PyTorch's best, at best and at worst."""
    if not found["steps"] or not found["s"]["gpu"] or not found["gain"] or not found["gain"]["cells"]:
        return []
    (least, where), (most, elsewhere) = found["gain"]["least"], found["gain"]["most"]
    worst = f" (the least: {times(least)}, {where})" if where != elsewhere else ""
    meaning = f"as fast as PyTorch's best data-parallel step, over copy engines: {elsewhere}{worst}"
    return [Tile(times(most), escape(meaning), "gain from copy engines")]


def candidates(cell: DataFrame) -> list[Series]:
    """The floor, our best buckets, peer memory, PyTorch's wrapper as it comes and at its best, and the reader's own."""
    kinds = [[FLOOR], ["bucketed"], ["peer_memory"], ["ddp"], PYTORCH]
    found = {row.name: row for kind in kinds if (row := fastest(cell, kind)) is not None}
    return [*found.values(), *(row for _, row in select(cell, family=OWN).iterrows())]


def parts(rows: DataFrame) -> dict[str, Any]:
    """What the profiled steps have beyond the floor's, in three parts, and by cell which is peer memory's largest."""
    body: list[list[str]] = []
    limits: dict[str, list[tuple[float, str]]] = {}
    stretched: list[tuple[float, float]] = []
    for cell in cells_of(rows):
        profiled = cell[cell["longer"].notna()]
        found = [fastest(profiled, kinds) for kinds in (["bucketed"], ["peer_memory"], PYTORCH)]
        found += [row for _, row in select(profiled, family=OWN).iterrows()]
        shown = [row for row in found if row is not None]
        if shown:
            body.append([shown[0]["cell"]])
            body += [[row["title"], *(fixed(row[name]) for name in ("longer", *PARTS))] for row in shown]
        if (ours := found[1]) is not None:
            largest = max(PARTS, key=lambda part: float(ours[part]))
            limits.setdefault(PARTS[largest], []).append((float(ours[largest]), ours["cell"]))
            if (bucketed := found[0]) is not None:
                stretched.append((float(ours["stretched"]), float(bucketed["stretched"])))
    return {
        "parts": Table(["", "longer", *PARTS.values()], body) if body else None,
        "limits": [(part, min(found), max(found), len(found)) for part, found in limits.items()],
        "stretched": {
            "ours": (min(stretched)[0], max(stretched)[0]),
            "buckets": (min(other for _, other in stretched), max(other for _, other in stretched)),
            # At most half, in every cell.
            "far_less": all(own <= other / 2 and other > 0 for own, other in stretched),
        }
        if stretched
        else None,
    }


def tried(table: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """What else was tried, beside plain buckets of the same size: which of it is faster, and than peer memory too."""
    shown, outcomes = [], []
    for cell in cells_of(rows):
        plain = fastest(select(cell, bucket_mb=TRIED_AT), ["bucketed"])
        variations = cell[cell["contender"].isin(TRIED)]
        if plain is None or not len(variations):
            continue
        both = pandas.concat([cell.loc[[plain.name]], variations])
        shown.append(both.assign(over_bucketed=both["median"] / plain["median"]))
        ours = fastest(cell, ["peer_memory"])
        for _, row in device_bound(variations).iterrows():
            outcomes.append(
                verdict(plain, row)
                | {"title": row["title"], "ahead_of_ours": ours is not None and row["median"] < ours["median"]}
            )
    if not shown:
        return {"tried": None}
    found, cells = pandas.concat(shown), len({row["cell"] for row in outcomes})
    return {
        "tried": contender_table(DataParallelTraining, table, found, TRIED_COLUMNS, ["bucketed", *TRIED]),
        "tried_at": TRIED_AT,
        "tried_told": bool(outcomes),
        "outcomes": {
            result: in_which_cells([row for row in outcomes if row["verdict"] == result], cells)
            for result in ("faster", "same", "slower")
        },
        "ahead_of_ours": in_which_cells([row for row in outcomes if row["ahead_of_ours"]], cells),
        "error": extremes(found, "gradient_error"),
    }


def in_which_cells(outcomes: list[dict[str, Any]], cells: int) -> list[str]:
    """What was tried with the cells in which it had this outcome, if these are not all."""
    found: dict[str, list[str]] = {}
    for row in outcomes:
        found.setdefault(row["title"], []).append(row["cell"])
    return [name if len(where) == cells else f"{name} ({'; '.join(where)})" for name, where in found.items()]
