"""Self-checks of what must hold across all experiments."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.check import Check, conclude
from scripts.data import select


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check over all tables."""
    yield no_two_cells_identical(tables)
    yield one_machine(tables)


def no_two_cells_identical(tables: Mapping[str, DataFrame]) -> Check:
    """Two cells with the same mean to the last digit were not both measured."""
    counts: Counter[str] = Counter()
    for name, table in tables.items():
        # One metric per cell, named by its experiment: of several, one may equal another by definition.
        rows = select(table, metric=EXPERIMENTS[name].timed, status="ok")
        rows = rows[rows["n"] > 1]
        counts.update(f"{mean} {unit}" for mean, unit in zip(rows["mean"], rows["unit"], strict=True))
    repeated = sorted(timing for timing, count in counts.items() if count > 1)
    examined = counts.total()
    return conclude("no two timings are identical to the last digit", repeated, examined, f"{examined} timings")


def one_machine(tables: Mapping[str, DataFrame]) -> Check:
    """All rows come from one GPU model."""
    machines = sorted({gpu or "no GPU" for table in tables.values() for gpu in table["gpu"]})
    complaints = [" and ".join(machines)] if len(machines) > 1 else []
    return conclude("all rows were measured on one GPU model", complaints, len(machines), ", ".join(machines))
