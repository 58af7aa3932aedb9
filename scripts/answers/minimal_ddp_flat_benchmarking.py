"""Answers to `minimal_ddp_flat_benchmarking`: one all-reduce of all gradients beside one for each."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.views.comparison import cells_of, contenders, device_bound, fastest
from scripts.views.comparison_tables import APART, COLUMNS, contender_table, extremes, first, missing
from scripts.views.data import select
from scripts.views.progress import progress

WRAPPERS = ["naive", "flat"]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["data_parallel"]
    rows = contenders(DataParallelTraining, table)
    if not len(rows):
        return {"steps": None, "missing": missing(table)}
    return {
        "steps": contender_table(DataParallelTraining, table, rows, [*COLUMNS, *APART], WRAPPERS),
        "messages": first(select(rows, contender="flat")["messages"]),
        "gain": progress(DataParallelTraining, rows, ["naive"], ["flat"]),
        **saved(rows),
    }


def saved(rows: DataFrame) -> dict[str, Any]:
    """What one call in place of many saves of the communication, and what its copy of the gradients takes of memory."""
    pairs = [(fastest(cell, ["naive"]), fastest(cell, ["flat"])) for cell in cells_of(rows)]
    both = DataFrame(
        {
            "cell": naive["cell"],
            "host_bound": naive["host_bound"],
            "communication": naive["synchronization"] - flat["synchronization"],
            "memory": (flat["peak_memory"] - naive["peak_memory"]) / 1024,
        }
        for naive, flat in pairs
        if naive is not None and flat is not None
    )
    if not len(both):
        return {"saved": None, "memory": None}
    return {"saved": extremes(device_bound(both), "communication"), "memory": extremes(both, "memory")}
