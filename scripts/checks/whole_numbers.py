"""Self-checks of what is counted, not timed: bytes, launches, calls."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words

BYTES = {"B": 1, "MiB": MIB}
COUNTS = (
    "launches",
    "device_allocations",
    "compiled_graphs",
    "block_calls",
    "stage_events",
    "residual_tensors",
    "wrong_numbers",
)
"""Metrics without a unit that count something."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of counts."""
    yield counts_are_whole(tables)


def counts_are_whole(tables: Mapping[str, DataFrame]) -> Check:
    """Memory is a whole number of bytes, and what is counted a whole number."""
    complaints, examined = [], 0
    for name, table in tables.items():
        once = table[(table["status"] == "ok") & (table["n"] == 1)]
        rows = once[once["unit"].isin(list(BYTES)) | once["metric"].isin(COUNTS)]
        examined += len(rows)
        broken = rows[(rows["mean"] * rows["unit"].map(BYTES).fillna(1)) % 1 != 0]
        complaints += [
            f"{in_words(EXPERIMENTS[name], tuple(row[parameters(EXPERIMENTS[name])]))}: {row['metric']} {row['mean']}"
            for _, row in broken.iterrows()
        ]
    check = "memory is a whole number of bytes, and so is every count a whole number"
    return conclude(check, complaints, examined, f"{examined} numbers")
