"""Self-checks of what is a sum of other rows by definition."""

from collections.abc import Iterator, Mapping

import numpy
from pandas import DataFrame

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import wholes
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import parse_samples
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, told
from scripts.views.cells import in_words
from scripts.views.data import select

ROUNDING = 1e-9
SAMPLE_ROUNDING = 1e-4
"""Samples are kept with five digits."""


def sums(tables: Mapping[str, DataFrame]) -> Iterator[tuple[type[Experiment], DataFrame, str, list[str]]]:
    """Each metric that is a sum: its experiment, the experiment's measured rows, its name, and its parts."""
    for name, kind in EXPERIMENTS.items():
        for whole, parts in wholes(kind).items():
            yield kind, select(tables[name], status="ok"), whole, parts


@check("{n} sums, to the digit")
def parts_add_up(tables: Mapping[str, DataFrame]) -> Evidence:
    """What has parts, such as a step, the device's time in it or the memory at its peak, is their sum."""
    for kind, table, whole, parts in sums(tables):
        rows = table[table["metric"].isin(parts)]
        cells = table[table["metric"] == whole].set_index(parameters(kind))["mean"].to_frame("whole")
        cells["parts"] = rows.groupby(parameters(kind))["mean"].sum()
        yield len(cells)
        wrong = cells[~((cells["parts"] - cells["whole"]).abs() <= ROUNDING * cells["whole"])]
        for cell, row in wrong.iterrows():
            found = f"{told(row['whole'], 3)} {kind.metrics[whole]}, parts {told(row['parts'], 3)}"
            yield f"{in_words(kind, cell)}: {whole} {found}"


@check("{n} steps, to the digits that are kept")
def each_step_is_the_sum_of_its_phases(tables: Mapping[str, DataFrame]) -> Evidence:
    """Each sample of a step is the sum of its phases' samples.

    The samples are in the order of the steps.
    """
    for kind, table, whole, parts in sums(tables):
        rows = table[table["metric"].isin([whole, *parts]) & (table["samples"] != "")]
        texts = rows.pivot(index=parameters(kind), columns="metric", values="samples").reindex(columns=[whole, *parts])
        for cell, of_cell in texts.dropna(subset=whole).iterrows():
            step, *phases = (numpy.array(parse_samples(text)) for text in of_cell.dropna())
            yield len(step)
            if any(len(phase) != len(step) for phase in phases):
                yield f"{in_words(kind, cell)}: not as many phases as steps"
            elif (numpy.abs(sum(phases) - step) > SAMPLE_ROUNDING * step).any():
                yield f"{in_words(kind, cell)}: up to {numpy.abs(sum(phases) - step).max():.3f} ms apart"


@check("{n} cells")
def first_step_is_the_first_sample(end_to_end: DataFrame) -> Evidence:
    """The first timed step is the first of the steps' samples."""
    keys = parameters(EXPERIMENTS["end_to_end"])
    steps, firsts = (select(end_to_end, metric=name).set_index(keys) for name in ("step", "first_step"))
    both = steps.assign(first=firsts["mean"]).dropna(subset="first")
    for cell, row in both[both["samples"] != ""].iterrows():
        first, sample = row["first"], parse_samples(row["samples"])[0]
        found = f"{first:.3f} ms, first sample {sample:.3f} ms"
        yield Case(in_words(EXPERIMENTS["end_to_end"], cell), abs(sample - first) > SAMPLE_ROUNDING * first, found)
