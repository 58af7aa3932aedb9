"""Answers to `naive_ddp_benchmarking`: the training step when each gradient is all-reduced after the backward pass."""

from collections.abc import Mapping
from typing import Any

from numpy import nan
from pandas import DataFrame

from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from scripts.views.bucket_sizes import fitted_line
from scripts.views.communication import MB
from scripts.views.comparison import contenders, device_bound
from scripts.views.comparison_tables import (
    APART,
    COLUMNS,
    contender_table,
    extremes,
    first,
    missing,
    setting,
)
from scripts.views.data import select
from scripts.views.host import host_table

NEAR = 0.15
"""Relative difference between a measured time and the line's that counts as agreement."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["data_parallel"]
    rows = contenders(DataParallelTraining, table)
    if not len(rows):
        return {"steps": None, "missing": missing(table)}
    naive = select(rows, contender="naive")
    told = device_bound(naive)
    exposed = told.assign(exposed_share=told["exposed"] / told["median"])
    return {
        "steps": contender_table(DataParallelTraining, table, rows, [*COLUMNS, *APART], [FLOOR, "naive"]),
        "s": setting(DataParallelTraining, table, rows),
        "messages": first(naive["messages"]),
        "size": first(naive["communicated"]),
        "share": extremes(told, "synchronization_share"),
        "exposed": extremes(exposed, "exposed_share"),
        "expected": against_the_line(tables["all_reduce"], told),
        "host": host_table(table),
    }


def against_the_line(all_reduce: DataFrame, naive: DataFrame) -> dict[str, Any] | None:
    """What the line through the all-reduces by themselves gives for a step's messages, beside what they took."""
    found = naive[(naive["synchronization"] > 0) & (naive["messages"] > 0)]
    lines = [fitted_line(all_reduce, row) for _, row in found.iterrows()]
    found = found.assign(
        calls=[nan if line is None else 1e3 * line.overhead for line in lines] * found["messages"],
        bytes=[nan if line is None else 1e3 * MB / line.bandwidth for line in lines] * found["communicated"],
    )
    found = found.assign(expected=found["calls"] + found["bytes"])
    found = found.assign(ratio=found["synchronization"] / found["expected"])
    ratio = extremes(found, "ratio")
    if ratio is None:
        return None
    return {
        "expected": extremes(found, "expected"),
        "calls": extremes(found, "calls"),
        "ratio": ratio,
        "near": max(abs(end - 1) for end, _ in ratio.values()) <= NEAR,
    }
