"""Self-checks of how times grow with the length of a sequence."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Evidence, NotApplicable, between_cells, check, name_row
from scripts.checks.attention_calls import DEVICE_BOUND_MS, device_bound_rows
from scripts.views.data import measured_gpu

SLACK = between_cells(TOLERANCE["GPU"])


@dataclass(frozen=True)
class Growth:
    """How the times of an experiment grow with a length: between two powers of it."""

    experiment: str
    length: str
    metrics: tuple[str, ...]
    least: int
    largest: int


GROWTHS = [
    # Attention's products are quadratic, and what it reads is linear.
    Growth("attention", "sequence", ("forward", "backward"), 1, 2),
    Growth("flash", "sequence", ("forward", "backward", "forward_backward"), 1, 2),
    # A model's weights are read whatever the length, and the optimizer does not know it.
    Growth("end_to_end", "context", ("forward_busy", "backward_busy"), 0, 2),
    Growth("end_to_end", "context", ("optimizer_busy",), 0, 0),
]


@check("{n} pairs of neighbouring lengths")
def times_grow_with_length(tables: Mapping[str, DataFrame]) -> Evidence:
    """From {DEVICE_BOUND_MS:g} ms up, no time grows with the length by more or less than its work, +- {SLACK:.0%}."""
    if not measured_gpu(tables):
        raise NotApplicable("judged on GPUs only: on a CPU caches and other programs hide it")
    tables = {**tables, Flash.name: device_bound_rows(tables[Flash.name])}
    for growth in GROWTHS:
        for cell, metric, factor, length_factor in neighbours(tables[growth.experiment], growth):
            least, most = length_factor**growth.least / (1 + SLACK), length_factor**growth.largest * (1 + SLACK)
            found = f"{metric} {factor:.2f} times as long for {length_factor:g} times the length"
            yield Case(cell, not least <= factor <= most, found)


def neighbours(table: DataFrame, growth: Growth) -> Iterator[tuple[str, str, float, float]]:
    """Of each pair of neighbouring lengths: the longer cell in words, a metric, its factor, and that of the length."""
    kind = EXPERIMENTS[growth.experiment]
    keys = parameters(kind)
    rows = table[table["metric"].isin(growth.metrics) & (table["status"] == "ok")]
    for _, group in rows.groupby([*(name for name in keys if name != growth.length), "metric"]):
        ordered = [row for _, row in group.sort_values(growth.length).iterrows()]
        for short, long in itertools.pairwise(ordered):
            if short["median"] >= DEVICE_BOUND_MS:
                name = name_row(kind, long)
                yield name, long["metric"], long["median"] / short["median"], long[growth.length] / short[growth.length]
