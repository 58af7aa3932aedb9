"""Self-checks of what must hold across all experiments."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from scripts.checks import Check, conclude


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check over all tables."""
    yield one_machine(tables)


def one_machine(tables: Mapping[str, DataFrame]) -> Check:
    """All rows come from one GPU model."""
    machines = sorted({gpu or "no GPU" for table in tables.values() for gpu in table["gpu"]})
    complaints = [" and ".join(machines)] if len(machines) > 1 else []
    return conclude("all rows were measured on one GPU model", complaints, len(machines), ", ".join(machines))
