"""Self-checks of whether cells have all their metrics."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.checks import Evidence, check, name_row
from scripts.views.cells import in_words
from scripts.views.completeness import kinds_of, missing_metrics

DIFFER = ("flash_ablation", "data_parallel", "optimizer_sharding", "fsdp", "training_ladder")
"""Experiments whose contenders differ in what can be measured of them."""


@check("{n} experiments")
def cells_are_complete(tables: Mapping[str, DataFrame]) -> Evidence:
    """All cells of a kind that the same code measured have the same metrics."""
    for name, table in tables.items():
        yield int(len(table) > 0)
        for cell, missing in missing_metrics(name, table).items():
            yield f"{in_words(EXPERIMENTS[name], cell)}: no {', '.join(missing)}"


@check("{n} rows")
def metrics_are_lost_in_all_cells(tables: Mapping[str, DataFrame]) -> Evidence:
    """No metric is lost that another cell of its kind has.

    A single metric is lost because a machine lacks something, which it does in all cells of a kind.
    """
    for name, table in tables.items():
        kinds = dict(zip(table.index, kinds_of(name, table), strict=True))
        rows = table[table["metric"] != WHOLE_CELL]
        yield len(rows)
        measured = rows[rows["status"] == "ok"]["metric"]
        found = {(kinds[index], metric) for index, metric in measured.items()}
        for index, row in rows[rows["status"] != "ok"].iterrows():
            if row["status"] != "skipped" or (name not in DIFFER and (kinds[index], row["metric"]) in found):
                yield f"{name_row(EXPERIMENTS[name], row)}: {row['metric']} {row['status']}"
