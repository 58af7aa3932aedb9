"""Self-checks of the GPU's clock and power, which are sampled while a cell is measured."""

import heapq
from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.measurement import POWER, SM_CLOCK, WALL, parse_samples
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, rows_of, told
from scripts.views.cells import in_words
from scripts.views.data import select

INTERVAL = 0.1
"""Seconds between two samples, at least."""
LATE = 3
"""How many times that the samples may be apart on average: a busy host wakes the thread that takes them late."""
MISSED = 3
"""Samples that there may be fewer."""
NO_LIMIT = "no power limit is listed for this GPU, or for a CPU"
NO_MONITOR = "a GPU's clock is sampled where its driver reports it"
ABOVE = 0.1
"""Share of its limit by which a GPU's power may be above it for a moment."""
IDLE = 0.02
"""Share of its limit that a GPU draws at least."""
ABOVE_OTHERS = 0.1
"""Share by which one cell's clock may be above all others'."""


@check("{n} cells", NO_MONITOR)
def samples_fill_the_cell(tables: Mapping[str, DataFrame]) -> Evidence:
    """Clock and power have as many samples as a cell has time for.

    They are sampled together, every tenth of a second or a little less often.
    """
    for name, table in tables.items():
        sampled = [select(table, metric=metric) for metric in (SM_CLOCK, POWER, WALL)]
        if not any(map(len, sampled[:2])):
            continue
        clocks, watts, walls = (rows.set_index(parameters(EXPERIMENTS[name])) for rows in sampled)
        both = DataFrame({"clock": clocks["n"], "power": watts["n"]}).join(walls["mean"].rename("wall"), how="inner")
        for cell, row in both.iterrows():
            clock, power, wall = row["clock"], row["power"], row["wall"]
            wrong = clock != power or (clock - 1) * INTERVAL > wall or clock < wall / (LATE * INTERVAL) - MISSED
            yield Case(in_words(EXPERIMENTS[name], cell), wrong, f"{told(clock)} and {told(power)} in {wall:.2f} s")


@check("{n} cells", NO_MONITOR)
def clocks_are_clocks(tables: Mapping[str, DataFrame]) -> Evidence:
    """A GPU's clock is a whole number of MHz that other cells reach too."""
    found = [(cell, parse_samples(row["samples"]) or [row["mean"]]) for cell, row in rows_of(tables, metric=SM_CLOCK)]
    second = min(heapq.nlargest(2, (max(samples) for _, samples in found)), default=0.0)
    for cell, samples in found:
        wrong = any(sample % 1 for sample in samples) or max(samples) > (1 + ABOVE_OTHERS) * second
        yield Case(cell, wrong, f"{max(samples):g} MHz, the second highest of all cells {second:g} MHz")


@check("{n} cells", NO_LIMIT)
def power_is_within_the_limit(tables: Mapping[str, DataFrame]) -> Evidence:
    """A GPU's power is within its data sheet's limit."""
    for cell, row in rows_of(tables, metric=POWER):
        if gpu := gpu_of(row["gpu"]):
            limit = gpu.power_limit
            found = f"{row['p20']:.1f} to {row['p80']:.1f} W of {limit:g} W"
            yield Case(cell, not IDLE * limit <= row["p20"] <= row["p80"] <= (1 + ABOVE) * limit, found)
