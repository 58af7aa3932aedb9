"""Answers to `optimizer_state_sharding_accounting`: memory, time and communication of sharded optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.optimizer_sharding import SCHEMES, fp32_adamw
from cs336_systems.sizes import parse_size
from scripts.answers.helpers.data_parallel import NONE, common_setting, extremes, missing
from scripts.answers.helpers.optimizer_sharding import step_table
from scripts.data import select
from scripts.markup import Table, Typst, significant
from scripts.optimizer_sharding import (
    BEFORE_UPDATE,
    CELL,
    CONTENDERS,
    INITIALIZED,
    PYTORCH,
    SHARDED,
    contenders,
    memory,
    memory_unit_of,
    peaks,
)
from scripts.units import GIB

HANDOUT_SIZE, HANDOUT_VOCABULARY = "xl", 10_000
RANKS = (2, 4)
GB = 1e9
FORMULAS = {
    "data parallel": ("$16 P$", "$2 r dot 4 P$"),
    "sharded optimizer": ("$8 P + 8 P \\/ N$", "$3 r dot 4 P$"),
    "ZeRO-1": ("$8 P + 8 P \\/ N$", "$2 r dot 4 P$"),
    "ZeRO-2": ("$4 P + 12 P \\/ N$", "$2 r dot 4 P$"),
}
"""Bytes of a rank's training state, and what it sends in a step; step counters, a few bytes, are left out."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["optimizer_sharding"]
    rows = contenders(table)
    found: dict[str, Any] = {"schemes": schemes_table(), "ranks": RANKS, "size": HANDOUT_SIZE}
    if not len(rows):
        return found | {"steps": None, "missing": missing(table)}
    return found | {
        "s": common_setting(rows) | {"bf16": bool((rows["precision"] == "bf16").any())},
        **memory_answers(memory(table)),
        "steps": step_table(table, rows),
        "against": {
            "pytorch": {CONTENDERS[name]: steps for name in SHARDED if (steps := against(rows, PYTORCH, [name]))},
            "unsharded": against(rows, ["unsharded"], ["sharded"]),
            "peer_memory": against(rows, ["sharded"], ["sharded_peer_memory"]),
            "gradients": against(rows, ["sharded"], ["sharded_gradients"]),
        },
        "updates": {
            name: extremes(select(rows, contender=name), "optimizer")
            for name in ("unsharded", "sharded", "sharded_peer_memory")
        },
        "communication": communication(rows),
    }


def memory_answers(rows: DataFrame) -> dict[str, Any]:
    """What ranks have in use, beside the closed forms."""
    found = peaks(rows)
    error = found.assign(error=(found["peak"] / found["predicted_peak"] - 1).abs())
    return {
        "memory": memory_table(rows, found),
        "unit": memory_unit_of(rows)[0],
        "counted": bool(rows["allocated"].notna().any()),
        "saved": share_of_unsharded(found, "total", "sharded"),
        "saved_peak": share_of_unsharded(found, "peak", "sharded"),
        "saved_gradients_peak": share_of_unsharded(found, "peak", "sharded_gradients"),
        "error": extremes(error, "error"),
        "least_peak": least_peak(found),
    }


def memory_table(rows: DataFrame, found: DataFrame) -> Table:
    """Memory by moment and part, cell by cell."""
    unit, mib = memory_unit_of(rows)
    keys = [*CELL, "contender"]
    first = select(rows, moment=INITIALIZED).set_index(keys)["total"].rename("initialized")
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)
    parts = {"parameters": "weights", "gradients": "gradients", "optimizer_state": "state", "rest": "rest"}
    whole = found[[*keys, "cell", "title", "total", "passes", "update", "predicted_peak"]]
    whole = whole.join(first, on=keys).join(before[list(parts)], on=keys)
    groups = {
        "first": {"initialized": "in use"},
        "before the update": parts,
        "after it": {"total": "in use"},
        "peak": {"passes": "passes", "update": "update", "predicted_peak": "form"},
    }
    columns = {
        group: {name: title for name, title in names.items() if whole[name].notna().any()}
        for group, names in groups.items()
    }
    if not whole["passes"].notna().any():
        columns["peak"] = {}
    names = [name for group in columns.values() for name in group]
    body: list[list[str]] = []
    for cell, lines in whole.groupby("cell", sort=False):
        body.append([f"{cell}, {unit}"])
        body += [[row["title"], *(amount(row[name], mib) for name in names)] for _, row in lines.iterrows()]
    titles = [title for group in columns.values() for title in group.values()]
    return Table(
        ["", *titles], body, groups=[("", 1), *((group, len(found)) for group, found in columns.items() if found)]
    )


def amount(mib: float, unit: float) -> str:
    """Memory in units of so many MiB."""
    return NONE if pandas.isna(mib) else f"{mib / unit:.2f}"


def share_of_unsharded(found: DataFrame, column: str, contender: str) -> dict[str, tuple[float, str]] | None:
    """The least and the most of a contender's memory over the unsharded one's, by cell."""
    whole = select(found, contender="unsharded").set_index(CELL)[column].rename("whole")
    own = select(found, contender=contender).join(whole, on=CELL)
    return extremes(own.assign(share=own[column] / own["whole"]), "share")


def least_peak(found: DataFrame) -> dict[str, Any] | None:
    """The peak of our sharded optimizer, in each of its modes, over the least of PyTorch's, by cell."""
    known = found[found["peak"].notna()]
    theirs = known[known["contender"].isin(PYTORCH)].groupby(CELL)["peak"].min().rename("theirs")
    ratios = {}
    for name in ("sharded", "sharded_gradients"):
        own = select(known, contender=name).join(theirs, on=CELL)
        ratios[name] = extremes(own.assign(ratio=own["peak"] / own["theirs"]), "ratio")
    return ratios if all(ratios.values()) else None


def against(rows: DataFrame, earlier: Sequence[str], later: Sequence[str]) -> dict[str, Any] | None:
    """Steps of one kind of contender over those of another, each at its fastest, by cell.

    Two differ where the middle three fifths of their steps do not overlap.
    """
    pairs = [
        (first, second)
        for _, cell in rows.groupby("cell", sort=False)
        if (first := fastest(cell, earlier)) is not None and (second := fastest(cell, later)) is not None
    ]
    if not pairs:
        return None
    ratios = DataFrame(
        [{"ratio": second["median"] / first["median"], "cell": first["cell"]} for first, second in pairs]
    )
    return {
        "cells": len(pairs),
        "shorter": sum(bool(second["p80"] < first["p20"]) for first, second in pairs),
        "longer": sum(bool(second["p20"] > first["p80"]) for first, second in pairs),
        "ratio": extremes(ratios, "ratio"),
        "names": sorted({str(first["title"]) for first, _ in pairs}),
    }


def fastest(rows: DataFrame, names: Sequence[str]) -> Series | None:
    """The contender with the shortest median step among some, or None where none of them was measured."""
    found = rows[rows["contender"].isin(names)]
    return None if not len(found) else found.sort_values("median", kind="stable").iloc[0]


def communication(rows: DataFrame) -> list[dict[str, Any]] | None:
    """How long our sharded modes communicate in the profiled step, over the unsharded one, beside the bytes' ratio."""
    found = []
    whole = fp32_adamw(parse_size(rows["size"].iloc[0]), int(rows["vocab_size"].iloc[0]))
    base = select(rows, contender="unsharded").set_index(CELL)["communication"].rename("base")
    for name, scheme in (("sharded", "sharded optimizer"), ("sharded_gradients", "ZeRO-2")):
        own = select(rows, contender=name).join(base, on=CELL)
        ratio = extremes(own.assign(ratio=own["communication"] / own["base"]), "ratio")
        if ratio is None:
            return None
        sent = [SCHEMES[each].sent(whole, 2) for each in (scheme, "data parallel")]
        found.append({"title": own["title"].iloc[0], "ratio": ratio, "bytes": sent[0] / sent[1]})
    return found


def schemes_table() -> Table:
    """(c) Memory and communication by closed form, at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    body = []
    for name, scheme in SCHEMES.items():
        state, sent = FORMULAS[name]
        body.append(
            [
                name,
                Typst(state),
                *(str(significant(scheme.memory(whole, ranks).total / GIB)) for ranks in RANKS),
                Typst(sent),
                *(str(significant(scheme.sent(whole, ranks) / GB)) for ranks in RANKS),
            ]
        )
    numbers = [f"N = {ranks}" for ranks in RANKS]
    return Table(
        ["", "bytes", *numbers, "bytes", *numbers],
        body,
        groups=[("", 1), ("training state of a rank / GiB", 3), ("sent by a rank in a step / GB", 3)],
    )
