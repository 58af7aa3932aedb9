"""Self-checks of whether cells have all their metrics."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words
from scripts.views.completeness import kinds_of, missing_metrics

DIFFER = ("flash_ablation", "data_parallel", "optimizer_sharding", "fsdp", "training_ladder")
"""Experiments whose contenders differ in what can be measured of them."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of completeness."""
    yield cells_are_complete(tables)
    yield metrics_are_lost_in_all_cells(tables)


def cells_are_complete(tables: Mapping[str, DataFrame]) -> Check:
    """All cells of a kind that the same code has measured have the same metrics."""
    complaints = [
        f"{in_words(EXPERIMENTS[name], cell)}: no {', '.join(missing)}"
        for name, table in tables.items()
        for cell, missing in missing_metrics(name, table).items()
    ]
    measured = sum(len(table) > 0 for table in tables.values())
    check = "all cells of a kind that the same code measured have the same metrics"
    return conclude(check, complaints, measured, f"{measured} experiments")


def metrics_are_lost_in_all_cells(tables: Mapping[str, DataFrame]) -> Check:
    """A single metric is lost because a machine lacks something, which it does in all cells of a kind."""
    complaints, examined = [], 0
    for name, table in tables.items():
        kinds = dict(zip(table.index, kinds_of(name, table), strict=True))
        rows = table[table["metric"] != WHOLE_CELL]
        examined += len(rows)
        measured = rows[rows["status"] == "ok"]["metric"]
        found = {(kinds[index], metric) for index, metric in measured.items()}
        complaints += [
            f"{in_words(EXPERIMENTS[name], tuple(row[parameters(EXPERIMENTS[name])]))}: {row['metric']} {row['status']}"
            for index, row in rows[rows["status"] != "ok"].iterrows()
            if row["status"] != "skipped" or (name not in DIFFER and (kinds[index], row["metric"]) in found)
        ]
    check = "no metric is lost that another cell of its kind has"
    return conclude(check, complaints, examined, f"{examined} rows")
