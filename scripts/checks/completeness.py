"""Self-checks of whether cells have all their metrics."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.cells import in_words
from scripts.check import Check, conclude
from scripts.completeness import missing_metrics


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of completeness."""
    yield cells_are_complete(tables)


def cells_are_complete(tables: Mapping[str, DataFrame]) -> Check:
    """All measured cells of a kind have the same metrics."""
    complaints = [
        f"{in_words(EXPERIMENTS[name], cell)}: no {', '.join(missing)}"
        for name, table in tables.items()
        for cell, missing in missing_metrics(name, table).items()
    ]
    measured = sum(len(table) > 0 for table in tables.values())
    check = "all measured cells of a kind have the same metrics"
    return conclude(check, complaints, measured, f"{measured} experiments")
