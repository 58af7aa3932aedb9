"""Self-checks of what must hold across all experiments."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from scripts.checks import Check


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check over all tables."""
    yield one_machine(tables)


def one_machine(tables: Mapping[str, DataFrame]) -> Check:
    """All rows come from one GPU model."""
    machines = sorted({gpu or "no GPU" for table in tables.values() for gpu in table["gpu"]})
    outcome = {0: "not applicable", 1: "passed"}.get(len(machines), "failed")
    detail = " and ".join(machines)
    return Check("all rows were measured on one GPU model", outcome, detail)
