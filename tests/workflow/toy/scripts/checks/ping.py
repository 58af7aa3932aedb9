"""Self-checks of the toy experiment."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from scripts.checks import Check, conclude
from scripts.views.data import select


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Ones sum to the number of processes."""
    rows = select(tables["ping"], metric="sum")
    wrong = rows[rows["mean"] != rows["processes"]]
    complaints = [f"{row['processes']} processes: {row['mean']}" for _, row in wrong.iterrows()]
    yield conclude("every process was counted once by a ping", complaints, len(rows), f"{len(rows)} cells")
