"""Self-checks of counts: bytes, launches, calls."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.metrics import metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.checks import Case, Cases, check, name_row

BYTES = {"B": 1, "MiB": MIB}


@check("{n} numbers")
def counts_are_whole(tables: Mapping[str, DataFrame]) -> Cases:
    """Memory is a whole number of bytes, and every count is a whole number."""
    for name, table in tables.items():
        once = table[(table["status"] == "ok") & (table["n"] == 1)]
        counts = [metric for metric, of in metrics_of(EXPERIMENTS[name]).items() if of.counts]
        rows = once[once["unit"].isin(list(BYTES)) | once["metric"].isin(counts)]
        for _, row in rows.iterrows():
            wrong = row["mean"] * BYTES.get(row["unit"], 1) % 1 != 0
            yield Case(name_row(name, row), wrong, f"{row['metric']} {row['mean']}")
