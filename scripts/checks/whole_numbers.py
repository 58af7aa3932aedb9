"""Self-checks of what is counted, not timed: bytes, launches, calls."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.metrics import metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words

BYTES = {"B": 1, "MiB": MIB}


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of counts."""
    yield counts_are_whole(tables)


def counts_are_whole(tables: Mapping[str, DataFrame]) -> Check:
    """Memory is a whole number of bytes, and what is counted a whole number."""
    complaints, examined = [], 0
    for name, table in tables.items():
        once = table[(table["status"] == "ok") & (table["n"] == 1)]
        counts = [metric for metric, of in metrics_of(EXPERIMENTS[name]).items() if of.counts]
        rows = once[once["unit"].isin(list(BYTES)) | once["metric"].isin(counts)]
        examined += len(rows)
        broken = rows[(rows["mean"] * rows["unit"].map(BYTES).fillna(1)) % 1 != 0]
        complaints += [
            f"{in_words(EXPERIMENTS[name], tuple(row[parameters(EXPERIMENTS[name])]))}: {row['metric']} {row['mean']}"
            for _, row in broken.iterrows()
        ]
    check = "memory is a whole number of bytes, and so is every count a whole number"
    return conclude(check, complaints, examined, f"{examined} numbers")
