"""Self-checks over the tables of all experiments."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from scripts.checks.check import Check, verdict
from scripts.data import select

TIMED = {"end_to_end": "step", "attention": "forward", "flash": "forward_backward", "flash_ablation": "forward"}
"""One timing a cell, by experiment: of several, one may be another's by definition."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of all tables together."""
    yield no_two_cells_identical(tables)
    yield one_machine(tables)


def no_two_cells_identical(tables: Mapping[str, DataFrame]) -> Check:
    """Two cells with the same mean to the last digit were not both measured."""
    timings = [select(tables[name], metric=metric, status="ok") for name, metric in TIMED.items()]
    counts = Counter(mean for table in timings for mean in table[table["n"] > 1]["mean"])
    repeated = sorted(f"{mean} ms" for mean, count in counts.items() if count > 1)
    examined = counts.total()
    return verdict("no two timings are identical to the last digit", repeated, examined, f"{examined} timings")


def one_machine(tables: Mapping[str, DataFrame]) -> Check:
    """All rows come from one GPU model."""
    machines = sorted({gpu or "no GPU" for table in tables.values() for gpu in table["gpu"]})
    complaints = [" and ".join(machines)] if len(machines) > 1 else []
    return verdict("all rows were measured on one GPU model", complaints, len(machines), ", ".join(machines))
