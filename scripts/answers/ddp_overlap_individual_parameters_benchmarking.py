"""Answers to `ddp_overlap_individual_parameters_benchmarking`: gradients that travel beside the backward pass."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.views.comparison import contenders, device_bound, traced_cell
from scripts.views.comparison_tables import COLUMNS, contender_table, covered, extremes, missing
from scripts.views.data import select
from scripts.views.data_parallel import shown_in_timelines
from scripts.views.progress import progress

WRAPPERS = ["naive", "flat", "overlapped"]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["data_parallel"]
    rows = contenders(DataParallelTraining, table)
    if not len(rows):
        return {"steps": None, "missing": missing(table)}
    overlapped = select(device_bound(rows), contender="overlapped")
    return {
        "steps": contender_table(DataParallelTraining, table, rows, COLUMNS, WRAPPERS),
        "gain": progress(DataParallelTraining, rows, ["flat"], ["overlapped"]),
        "over_naive": progress(DataParallelTraining, rows, ["naive"], ["overlapped"]),
        "hidden": extremes(overlapped, "hidden_share"),
        "stretch": extremes(overlapped, "stretch"),
        "traces": covered(shown_in_timelines(traced_cell(rows)), {"communication": "hidden_share"}),
    }
