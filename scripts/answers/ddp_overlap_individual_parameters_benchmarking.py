"""Answers to `ddp_overlap_individual_parameters_benchmarking`: gradients that travel beside the backward pass."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.views.data import select
from scripts.views.data_parallel import contenders, shown_in_timelines, traced_cell
from scripts.views.wrappers import contender_table, extremes, missing, progress

WRAPPERS = ["naive", "flat", "overlapped"]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["data_parallel"]
    rows = contenders(table)
    if not len(rows):
        return {"steps": None, "missing": missing(table)}
    overlapped = select(rows, wrapper="overlapped")
    return {
        "steps": contender_table(table, rows, WRAPPERS),
        "gain": progress(rows, ["flat"], ["overlapped"]),
        "over_naive": progress(rows, ["naive"], ["overlapped"]),
        "hidden": extremes(overlapped, "hidden_share"),
        "stretch": extremes(overlapped, "stretch"),
        "traces": traces(table),
    }


def traces(table: DataFrame) -> dict[str, Any] | None:
    """What the drawn timelines show, in words."""
    cell = traced_cell(table)
    if not len(cell):
        return None
    return {
        "cell": cell["cell"].iloc[0],
        "shares": [
            {"title": row["title"], "hidden": row["hidden_share"], "communication": row["communication"]}
            for row in shown_in_timelines(cell)
            if row["communication"] > 0
        ],
    }
