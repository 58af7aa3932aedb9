"""Self-checks of what is a sum of other rows by definition."""

from collections.abc import Iterator, Mapping

import numpy
from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words, side_by_side
from scripts.views.data import PHASES, select

BUSY = [f"{phase}_busy" for phase in PHASES]
SUMS = [
    ("end_to_end", "step", PHASES),
    ("end_to_end", "device_busy", BUSY),
    ("checkpointing", "step", PHASES),
]
"""Experiment, metric, and the metrics whose means it is the sum of, as far as a cell has them."""
STEPS = [("end_to_end", "step"), ("checkpointing", "step")]
"""Experiment and metric of whose samples, which are in order, each is the sum of its phases'."""
ROUNDING = 1e-9
SAMPLE_ROUNDING = 1e-4
"""Samples are kept with five digits."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of sums."""
    yield parts_add_up(tables)
    yield each_step_is_the_sum_of_its_phases(tables)
    yield first_step_is_the_first_sample(tables["end_to_end"])


def parts_add_up(tables: Mapping[str, DataFrame]) -> Check:
    """A step's mean is the sum of its phases' means, and so is the device's time in it."""
    complaints, examined = [], 0
    for experiment, metric, parts in SUMS:
        kind = EXPERIMENTS[experiment]
        cells = side_by_side(tables[experiment], kind).reindex(columns=[metric, *parts])
        cells = cells[cells[metric].notna()]
        examined += len(cells)
        wrong = cells[(cells[parts].sum(axis=1) - cells[metric]).abs() > ROUNDING * cells[metric]]
        complaints += [
            f"{in_words(kind, cell)}: {metric} {row[metric]:.3f} ms, parts {row[parts].sum():.3f} ms"
            for cell, row in wrong.iterrows()
        ]
    check = "a step's mean is the sum of its phases' means, and the device's time in a step that of its phases"
    return conclude(check, complaints, examined, f"{examined} sums, to the digit")


def each_step_is_the_sum_of_its_phases(tables: Mapping[str, DataFrame]) -> Check:
    """Step by step, too, a step's time is the sum of its phases' times: the samples are in the order of the steps."""
    complaints, examined = [], 0
    for experiment, whole in STEPS:
        kind = EXPERIMENTS[experiment]
        table = tables[experiment]
        rows = table[table["metric"].isin([whole, *PHASES]) & (table["samples"] != "")]
        texts = rows.pivot(index=parameters(kind), columns="metric", values="samples").reindex(columns=[whole, *PHASES])
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
