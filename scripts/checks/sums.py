"""Self-checks of what is a sum of other rows by definition."""

from collections.abc import Iterator, Mapping

import numpy
from pandas import DataFrame

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import wholes
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude, told
from scripts.views.cells import in_words
from scripts.views.data import select

ROUNDING = 1e-9
SAMPLE_ROUNDING = 1e-4
"""Samples are kept with five digits."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of sums."""
    yield parts_add_up(tables)
    yield each_step_is_the_sum_of_its_phases(tables)
    yield first_step_is_the_first_sample(tables["end_to_end"])


def sums(tables: Mapping[str, DataFrame]) -> Iterator[tuple[type[Experiment], DataFrame, str, list[str]]]:
    """Each metric that is a sum: its experiment, the experiment's measured rows, its name, and its parts."""
    for name, kind in EXPERIMENTS.items():
        for whole, parts in wholes(kind).items():
            yield kind, select(tables[name], status="ok"), whole, parts


def parts_add_up(tables: Mapping[str, DataFrame]) -> Check:
    """A step's mean is the sum of its phases' means; so is all else that has parts, such as the device's time in it."""
    complaints, examined = [], 0
    for kind, table, whole, parts in sums(tables):
        rows = table[table["metric"].isin(parts)]
        cells = table[table["metric"] == whole].set_index(parameters(kind))["mean"].to_frame("whole")
        cells["parts"] = rows.groupby(parameters(kind))["mean"].sum()
        examined += len(cells)
        wrong = cells[~((cells["parts"] - cells["whole"]).abs() <= ROUNDING * cells["whole"])]
        complaints += [
            f"{in_words(kind, cell)}: {whole} {told(row['whole'], 3)} {kind.metrics[whole]}, "
            f"parts {told(row['parts'], 3)}"
            for cell, row in wrong.iterrows()
        ]
    check = "what has parts, such as a step, the device's time in it or the memory at its peak, is their sum"
    return conclude(check, complaints, examined, f"{examined} sums, to the digit")


def each_step_is_the_sum_of_its_phases(tables: Mapping[str, DataFrame]) -> Check:
    """Step by step, too, a step's time is the sum of its phases' times: the samples are in the order of the steps."""
    complaints, examined = [], 0
    for kind, table, whole, parts in sums(tables):
        rows = table[table["metric"].isin([whole, *parts]) & (table["samples"] != "")]
        texts = rows.pivot(index=parameters(kind), columns="metric", values="samples").reindex(columns=[whole, *parts])
        for cell, of_cell in texts.dropna(subset=whole).iterrows():
            step, *phases = (numpy.array(parse_samples(text)) for text in of_cell.dropna())
            examined += len(step)
            if any(len(phase) != len(step) for phase in phases):
                complaints.append(f"{in_words(kind, cell)}: not as many phases as steps")
            elif (numpy.abs(sum(phases) - step) > SAMPLE_ROUNDING * step).any():
                complaints.append(f"{in_words(kind, cell)}: up to {numpy.abs(sum(phases) - step).max():.3f} ms apart")
    check = "each sample of a step is the sum of its phases' samples"
    return conclude(check, complaints, examined, f"{examined} steps, to the digits that are kept")


def first_step_is_the_first_sample(table: DataFrame) -> Check:
    """The first of the samples, which are in order, is what was recorded as the first step."""
    kind = EXPERIMENTS["end_to_end"]
    steps, firsts = (select(table, metric=name).set_index(parameters(kind)) for name in ("step", "first_step"))
    both = steps.assign(first=firsts["mean"]).dropna(subset="first")
    both = both[both["samples"] != ""]
    complaints, examined = [], len(both)
    for cell, first, samples in zip(both.index, both["first"], both["samples"], strict=True):
        sample = parse_samples(samples)[0]
        if abs(sample - first) > SAMPLE_ROUNDING * first:
            complaints.append(f"{in_words(kind, cell)}: {first:.3f} ms, first sample {sample:.3f} ms")
    check = "the first timed step is the first of the steps' samples"
    return conclude(check, complaints, examined, f"{examined} cells")
