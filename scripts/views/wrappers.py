"""What the sections on data-parallel wrappers share: their table, what they say of a cell, and why there is none."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.measure.measurement import WHOLE_CELL
from scripts.rendering.markup import Table, significant
from scripts.views.communication import BACKENDS, WIDE_SPREAD
from scripts.views.data import reason, select
from scripts.views.data_parallel import (
    UNSTEADY,
    WRAPPERS,
    backend_of,
    cell_name,
    cells_of,
    compared,
    fastest,
    title,
    unsteady_cells,
)
from scripts.views.steps import HOST_BOUND

NONE = "–"


@dataclass(frozen=True)
class Column:
    """A column of the table of contenders."""

    title: str
    group: str
    """The title above it."""
    text: Callable[[Series], str]
    needs: str
    """The column of `contenders` without which it says nothing."""


def number(name: str, digits: int = 3) -> Callable[[Series], str]:
    """A column's number as text."""
    return lambda row: NONE if pandas.isna(row[name]) else str(significant(row[name], digits))


def share(name: str) -> Callable[[Series], str]:
    """A column's fraction as a percentage."""
    return lambda row: NONE if pandas.isna(row[name]) else f"{100 * row[name]:.0f}"


def marked_step(row: Series) -> str:
    """The median step, marked if the steps are far apart."""
    return f"{fixed(row['median'])}{' *' if row['wide'] else ''}"


def fixed(value: float) -> str:
    """Milliseconds: one decimal from 10 on, two below."""
    decimals = 1 if abs(value) >= 10 else 2
    return NONE if pandas.isna(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def gib(mib: float) -> str:
    """Memory in GiB."""
    return NONE if pandas.isna(mib) else f"{mib / 1024:.1f}"


COLUMNS = [
    Column("median", "step / ms", marked_step, "median"),
    Column("p20–p80", "step / ms", lambda row: f"{fixed(row['p20'])}–{fixed(row['p80'])}", "p20"),
    Column("exposed", "step / ms", lambda row: fixed(row["exposed"]), "exposed"),
    Column("comm. / ms", "profiled step", lambda row: fixed(row["communication"]), "communication"),
    Column("hidden / %", "profiled step", share("hidden_share"), "hidden_share"),
    Column("busy / %", "profiled step", share("busy_share"), "busy_share"),
    Column("compute", "profiled step", number("stretch"), "stretch"),
    Column("peak", "GiB", lambda row: gib(row["peak_memory"]), "peak_memory"),
]
OUTSIDE = Column("outside", "GiB", lambda row: gib(row["outside_memory"]), "outside_memory")
APART = [
    Column("ms", "timed apart", lambda row: fixed(row["synchronization"]), "synchronization"),
    Column("%", "timed apart", share("synchronization_share"), "synchronization_share"),
]
"""Communication in a step in which the device is synchronized after each phase."""


def contender_table(
    table: DataFrame, rows: DataFrame, wrappers: Collection[str], columns: Sequence[Column] = COLUMNS
) -> Table:
    """Some wrappers, cell by cell; those that could not be measured have their reason.

    Args:
        table: the experiment's rows.
        rows: of `contenders`.
        wrappers: which of them to show.
        columns: of which those that say nothing of any of them are left out.
    """
    rows_shown = rows[rows["wrapper"].isin(wrappers)]
    columns = [column for column in columns if rows_shown[column.needs].notna().any()]
    lost = compared(table)
    lost = lost[(lost["metric"] == "step") & (lost["status"] != "ok") & lost["wrapper"].isin(wrappers)]
    lost = lost.assign(cell=[cell_name(row) for _, row in lost.iterrows()])
    body: list[list[str]] = []
    for cell in cells_of(rows):
        name, floor = cell["cell"].iloc[0], cell["floor"].dropna()
        lines = [
            [row["title"], *(column.text(row) for column in columns)]
            for _, row in select(rows_shown, cell=name).iterrows()
        ]
        for _, row in select(lost, cell=name).iterrows():
            lines.append([title(row), *[f"not measured: {row['message']}"] * max(len(columns), 1)])
        if lines:
            body += [[f"{name}; floor {fixed(floor.iloc[0])} ms" if len(floor) else name], *lines]
    groups = [("", 1), *((group, len(list(same))) for group, same in groupby(columns, lambda column: column.group))]
    titles = [column.title for column in columns] or [""]
    return Table(["", *titles], body, groups=groups if columns else [])


def missing(table: DataFrame) -> str:
    """Why there is nothing to show."""
    lost = select(table, metric=WHOLE_CELL)
    return reason(lost.iloc[:1]) if len(lost) else "not measured: not run"


def common_setting(rows: DataFrame) -> dict[str, Any]:
    """What all contenders of any experiment on several ranks have in common."""
    first = rows.iloc[0]
    return {
        "gpu": bool(first["gpu"]),
        "each": "GPU" if first["gpu"] else "process",
        "backend": BACKENDS[backend_of(first)],
        "size": first["label"],
        "context": int(first["context"]),
        "batch": int(first["batch_size"]),
        "rounds": int(first["rounds"]),
        "steps": int(first["steps"]),
        "warmup": int(first["warmup"]),
        "n": int(rows["n"].max()),
        "wide": int(rows["wide"].sum()),
        "wide_spread": WIDE_SPREAD,
    }


def setting(table: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """What all contenders have in common."""
    skipped = select(compared(table), metric="device_busy", status="skipped")
    return {
        **common_setting(rows),
        "negative": bool((rows["exposed"] < 0).any()),
        "unsteady": unsteady_cells(rows),
        "unsteady_from": UNSTEADY,
        "profiled": bool(rows["timeline_length"].notna().any()),
        "not_profiled": skipped["message"].iloc[0] if len(skipped) else "",
        "compiled": bool(rows["compiled"].any()),
        "host_paced": host_paced(rows),
    }


def host_paced(rows: DataFrame) -> dict[str, Any] | None:
    """The cells in which even the floor's device waits for the host, and for what shares of the step it works."""
    floors = select(rows, wrapper=FLOOR)
    found = floors[floors["busy_share"] < HOST_BOUND]
    if not len(found):
        return None
    shares = found["busy_share"]
    return {"cells": list(found["cell"]), "busy": (float(shares.min()), float(shares.max()))}


def first(column: Series) -> float | None:
    """The first number of a column, or None."""
    found = column.dropna()
    return float(found.iloc[0]) if len(found) else None


def extremes(rows: DataFrame, column: str) -> dict[str, tuple[float, str]] | None:
    """The least and the most of a column with the cell of each, or None where it was never measured."""
    found = rows[rows[column].notna()]
    if not len(found):
        return None
    ordered = found.sort_values(column, kind="stable")
    ends = {"least": ordered.iloc[0], "most": ordered.iloc[-1]}
    return {end: (float(row[column]), str(row["cell"])) for end, row in ends.items()}


def progress(rows: DataFrame, earlier: Sequence[str], later: Sequence[str]) -> dict[str, Any] | None:
    """Whether a step of the progression makes the training step shorter: its fastest contender against the one before.

    Two contenders differ where the middle three fifths of what their steps take beyond the floor of the same round do
    not overlap: the machine may be slower in one round than in another.
    """
    pairs = [(fastest(cell, *earlier), fastest(cell, *later)) for cell in cells_of(rows)]
    found = [verdict(first, second) for first, second in pairs if first is not None and second is not None]
    if not found:
        return None
    gains = [(pair["gain"], pair["cell"]) for pair in found]
    return {
        "earlier": at_its_best(rows, earlier),
        "later": at_its_best(rows, later),
        "cells": len(found),
        "faster": sum(pair["verdict"] == "faster" for pair in found),
        "least": min(gains),
        "most": max(gains),
        "most_where_faster": max(
            ((pair["gain"], pair["cell"]) for pair in found if pair["verdict"] == "faster"), default=None
        ),
        "exceptions": exceptions(found),
    }


def exceptions(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells in which a step of the progression makes nothing faster, those with the same reason together."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for pair in pairs:
        if pair["verdict"] != "faster":
            found.setdefault((pair["verdict"], pair["why"]), []).append(pair)
    return [
        {
            "verdict": result,
            "why": why,
            "cells": [pair["cell"] for pair in same],
            "loss": (min(pair["loss"] for pair in same), max(pair["loss"] for pair in same)),
            "more": (min(pair["more"] for pair in same), max(pair["more"] for pair in same)) if why else None,
            "profiled": same[0]["more"] is not None,
        }
        for (result, why), same in found.items()
    ]


def at_its_best(rows: DataFrame, wrappers: Sequence[str]) -> str:
    """A kind of wrapper in words, with the choice that is made for each cell if there is one."""
    several = rows[rows["wrapper"].isin(wrappers)].groupby("cell").size().max() > 1
    return f"{WRAPPERS[wrappers[0]]}{' at its best' if several else ''}"


def verdict(first: Series, second: Series) -> dict[str, Any]:
    """The second contender of a cell against the first, and what the profiled step shows if it is slower."""
    found = "same"
    if second["beyond_p80"] < first["beyond_p20"]:
        found = "faster"
    elif second["beyond_p20"] > first["beyond_p80"]:
        found = "slower"
    loss = second["median"] - first["median"]
    reasons = {
        "compute": second["stretched"] - first["stretched"],
        "uncovered": second["uncovered"] - first["uncovered"],
        "idle": second["idle"] - first["idle"],
    }
    most = max(reasons, key=lambda name: reasons[name]) if pandas.notna(list(reasons.values())).all() else ""
    return {
        "cell": first["cell"],
        "loss": loss,
        "gain": first["median"] / second["median"],
        "verdict": found,
        # The largest part of the profiled steps' difference, if it is large enough to stand for most of the loss.
        "why": most if found == "slower" and most and reasons[most] > loss / 2 else "",
        "more": reasons[most] if most else None,
    }
