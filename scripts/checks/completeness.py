"""Self-checks of whether cells have all their metrics."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.checks import Case, Cases, check, name_row
from scripts.views.cells import in_words
from scripts.views.completeness import kinds_of, missing_metrics

DIFFER = ("data_parallel", "optimizer_sharding", "fsdp", "training_ladder")
"""Experiments whose contenders have different metrics."""


@check("{n} experiment{s}")
def cells_are_complete(tables: Mapping[str, DataFrame]) -> Cases:
    """All cells of a kind have the same metrics if the same code measured them."""
    for name, table in tables.items():
        if len(table):
            yield Case(name)
        for cell, missing in missing_metrics(name, table).items():
            yield Case(in_words(EXPERIMENTS[name], cell), True, f"no {', '.join(missing)}")


@check("{n} lost metric{s}", "no metric was lost")
def metrics_are_lost_in_all_cells(tables: Mapping[str, DataFrame]) -> Cases:
    """No cell lacks a metric that another cell of its kind has.

    A single metric is missing because the machine lacks something, in all cells of a kind, or because a contender that
    needs more memory than others has run out of it.
    """
    for name, table in tables.items():
        rows = table[table["metric"] != WHOLE_CELL]
        measured = set() if name in DIFFER else set(metrics_of_kinds(name, rows[rows["status"] == "ok"]))
        lost = rows[rows["status"] != "ok"]
        for (_, row), metric in zip(lost.iterrows(), metrics_of_kinds(name, lost), strict=True):
            wrong = row["status"] not in ("skipped", "oom") or metric in measured
            yield Case(name_row(name, row), wrong, f"{row['metric']} {row['status']}")


def metrics_of_kinds(name: str, rows: DataFrame) -> list[tuple[object, str]]:
    """The kind of each row's cell, and its metric."""
    return list(zip(kinds_of(name, rows), rows["metric"], strict=True))
