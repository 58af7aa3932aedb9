"""Self-checks of the toy experiment."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from scripts.checks import Check, Evidence, check
from scripts.views.data import select


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    yield pings_are_counted(tables["ping"])


@check("{n} cells")
def pings_are_counted(table: DataFrame) -> Evidence:
    """Every process was counted once by a ping."""
    for _, row in select(table, metric="sum").iterrows():
        yield 1
        if row["mean"] != row["processes"]:
            yield f"{row['processes']} processes: {row['mean']}"
