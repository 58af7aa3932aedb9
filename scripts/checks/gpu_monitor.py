"""The self-check of the GPU's clock, which is sampled while a cell is measured."""

import heapq
from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.record.measurement import SM_CLOCK, parse_samples
from scripts.checks import Case, Cases, check, rows_of

ABOVE_OTHERS = 0.1
"""Share by which one cell's clock may exceed all others."""


@check("{n} cells", "a GPU's clock is sampled where its driver reports it")
def clocks_are_clocks(tables: Mapping[str, DataFrame]) -> Cases:
    """A GPU's clock is a whole number of MHz that other cells also reach."""
    clocks = [(cell, parse_samples(row["samples"]) or [row["mean"]]) for cell, row in rows_of(tables, metric=SM_CLOCK)]
    second = min(heapq.nlargest(2, (max(samples) for _, samples in clocks)), default=0.0)
    for cell, samples in clocks:
        wrong = any(sample % 1 for sample in samples) or max(samples) > (1 + ABOVE_OTHERS) * second
        yield Case(cell, wrong, f"{max(samples):g} MHz, the second highest of all cells {second:g} MHz")
