"""Self-checks of the GPU's clock and power, which are sampled while a cell is measured."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import POWER, SM_CLOCK, WALL, parse_samples
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude, told
from scripts.views.cells import in_words
from scripts.views.completeness import cells_of
from scripts.views.data import measured_gpu, select

INTERVAL = 0.1
"""Seconds between two samples, at least."""
LATE = 3
"""How many times that the samples may be apart on average: a busy host wakes the thread that takes them late."""
MISSED = 3
"""Samples that there may be fewer."""
NO_MONITOR = "a GPU's clock is sampled where its driver reports it"
ABOVE = 0.1
"""Share of its limit by which a GPU's power may be above it for a moment."""
IDLE = 0.02
"""Share of its limit that a GPU draws at least."""
ABOVE_OTHERS = 0.1
"""Share by which one cell's clock may be above all others'."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the samples."""
    yield samples_fill_the_cell(tables)
    yield clocks_are_clocks(tables)
    yield power_is_within_the_limit(tables)


def samples_fill_the_cell(tables: Mapping[str, DataFrame]) -> Check:
    """Clock and power are sampled together, every tenth of a second or a little less often, as long as a cell takes."""
    complaints, examined = [], 0
    for name, table in tables.items():
        keys = parameters(EXPERIMENTS[name])
        sampled = [select(table, metric=metric) for metric in (SM_CLOCK, POWER, WALL)]
        if not any(map(len, sampled[:2])):
            continue
        clocks, watts, walls = (rows.set_index(keys) for rows in sampled)
        both = DataFrame({"clock": clocks["n"], "power": watts["n"]}).join(walls["mean"].rename("wall"), how="inner")
        examined += len(both)
        fewest = both["wall"] / (LATE * INTERVAL) - MISSED
        wrong = (
            (both["clock"] != both["power"])
            | ((both["clock"] - 1) * INTERVAL > both["wall"])
            | (both["clock"] < fewest)
        )
        complaints += [
            f"{in_words(EXPERIMENTS[name], cell)}: {told(row['clock'])} and {told(row['power'])} in {row['wall']:.2f} s"
            for cell, row in both[wrong].iterrows()
        ]
    check = "clock and power have as many samples as a cell has time for"
    return conclude(check, complaints, examined, f"{examined} cells" if examined else NO_MONITOR)


def clocks_are_clocks(tables: Mapping[str, DataFrame]) -> Check:
    """Each clock is a whole number of MHz, and no cell's is far above all others'."""
    complaints, highest = [], []
    for name, table in tables.items():
        sampled = select(table, metric=SM_CLOCK)
        for cell, text, mean in zip(cells_of(name, sampled), sampled["samples"], sampled["mean"], strict=True):
            samples = parse_samples(text) or [mean]
            highest.append((max(samples), in_words(EXPERIMENTS[name], cell)))
            if any(sample % 1 for sample in samples):
                complaints.append(f"{highest[-1][1]}: {max(samples):g} MHz")
    *_, second, first = [(0.0, ""), (0.0, ""), *sorted(highest)]
    if len(highest) > 1 and first[0] > (1 + ABOVE_OTHERS) * second[0]:
        complaints.append(f"{first[1]}: {first[0]:g} MHz, in no other cell above {second[0]:g} MHz")
    check = "a GPU's clock is a whole number of MHz that other cells reach too"
    return conclude(check, complaints, len(highest), f"{len(highest)} cells" if highest else NO_MONITOR)


def power_is_within_the_limit(tables: Mapping[str, DataFrame]) -> Check:
    """No GPU draws more than the data sheet allows, or next to nothing."""
    complaints, examined = [], 0
    for name, table in tables.items():
        for _, row in select(table, metric=POWER).iterrows():
            if not (gpu := gpu_of(row["gpu"])):
                continue
            examined += 1
            limit = gpu.power_limit
            if not IDLE * limit <= row["p20"] <= row["p80"] <= (1 + ABOVE) * limit:
                cell = in_words(EXPERIMENTS[name], tuple(row[parameters(EXPERIMENTS[name])]))
                complaints.append(f"{cell}: {row['p20']:.1f} to {row['p80']:.1f} W of {limit:g} W")
    check = "a GPU's power is within its data sheet's limit"
    return conclude(check, complaints, examined, f"{examined} cells" if examined else no_limit(tables))


def no_limit(tables: Mapping[str, DataFrame]) -> str:
    """Why no power can be held to a limit."""
    gpu = measured_gpu(tables)
    return f"no power limit is listed for {gpu}" if gpu and not gpu_of(gpu) else NO_MONITOR
