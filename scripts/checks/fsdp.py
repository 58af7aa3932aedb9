"""Self-checks of sharded training."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.checks import Case, Cases, check
from scripts.checks.contenders import ON_GPUS
from scripts.views.comparison import contenders, series
from scripts.views.fsdp import SERIES, forward_pass

DIGITS = 1e-4
"""Share of the longest time that rounding to the kept digits may add to the others."""


def rows(tables: Mapping[str, DataFrame]) -> DataFrame:
    """A row per contender and cell."""
    return contenders(FullyShardedTraining, tables["fsdp"])


@check("{n} unit{s}", ON_GPUS)
def weights_arrive_before_they_are_used(fsdp: DataFrame, rows: DataFrame) -> Cases:
    """No FSDP unit computes before its weights arrive.

    In a profiled forward pass, each begins when its all-gather has ended and the device is ready.
    """
    for _, row in rows.iterrows():
        units = forward_pass(fsdp, row)
        known = max(len(series(FullyShardedTraining, fsdp, row, metric)) for metric in SERIES)
        early = units["begins"] < units[["gather_ends", "needed"]].max(axis=1) - DIGITS * units["begins"].max()
        for index in range(known):
            wrong = index >= len(units) or bool(early.iloc[index])
            yield Case(f"{row['contender']}, {row['cell']}", wrong, f"unit {index} of {known}")
