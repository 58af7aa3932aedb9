"""Self-checks of how times grow with lengths, model sizes and messages."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pandas import DataFrame, Series

from cs336_systems.compare.speed import LONG_MS
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Cases, between_cells, check, name_row
from scripts.checks.attention_calls import device_bound_rows
from scripts.views.data import measured_gpu, select, size_order

SLACK = between_cells(TOLERANCE["GPU"])


@dataclass(frozen=True)
class Growth:
    """How the times of an experiment grow with a parameter: between two powers of it."""

    experiment: str
    parameter: str
    metrics: tuple[str, ...]
    least: int = 0
    largest: int = 0
    wanted: Mapping[str, object] = field(default_factory=dict)
    """The values that the experiment's rows must have."""


LENGTHS = [
    # Attention's matmuls are quadratic in the length, its reads linear.
    Growth("attention", "sequence", ("forward", "backward"), 1, 2),
    Growth("flash", "sequence", ("forward", "backward", "forward_backward"), 1, 2),
    # A model's weights are read for any length, and the optimizer does not depend on it.
    Growth("end_to_end", "context", ("forward_busy", "backward_busy"), 0, 2),
    Growth("end_to_end", "context", ("optimizer_busy",), 0, 0),
]
IN_ORDER = [
    Growth("end_to_end", "size", ("forward",), wanted={"precision": "fp32", "mode": "train_step", "cold_start": False}),
    Growth("all_reduce", "megabytes", ("time",)),
]


@check("{n} pair{s} of neighbouring lengths", "on a CPU, caches and other programs hide the growth")
def times_grow_with_length(tables: Mapping[str, DataFrame]) -> Cases:
    """Times of at least {LONG_MS:g} ms grow with the length as their work does, within {SLACK:.0%}."""
    for growth in LENGTHS:
        table = tables[growth.experiment]
        if not measured_gpu({"": table}):
            continue
        for short, long in neighbours(device_bound_rows(table) if growth.experiment == Flash.name else table, growth):
            factor = long["median"] / short["median"]
            length_factor = long[growth.parameter] / short[growth.parameter]
            least, most = length_factor**growth.least / (1 + SLACK), length_factor**growth.largest * (1 + SLACK)
            if short["median"] >= LONG_MS:
                detail = f"{long['metric']} {factor:.2f} times as long for {length_factor:g} times the length"
                yield Case(name_row(growth.experiment, long), not least <= factor <= most, detail)


@check("{n} neighbouring pair{s}, p20 against p80")
def more_takes_longer(tables: Mapping[str, DataFrame]) -> Cases:
    """A larger model never has a shorter forward pass in fp32, and a larger message never a faster all-reduce.

    On a disturbed machine neighbours may overlap; quantiles exclude disturbances of a few steps.
    """
    for growth in IN_ORDER:
        for small, large in neighbours(tables[growth.experiment], growth):
            detail = (
                f"p80 {large['p80']:.3f} ms, {growth.parameter} {small[growth.parameter]} p20 {small['p20']:.3f} ms"
            )
            yield Case(name_row(growth.experiment, large), small["p20"] >= large["p80"], detail)


def neighbours(table: DataFrame, growth: Growth) -> Iterator[tuple[Series, Series]]:
    """Pairs of rows that differ only in neighbouring values of a parameter, the smaller one first."""
    values = size_order(table) if growth.parameter == "size" else sorted(table[growth.parameter].unique())
    others = [name for name in parameters(EXPERIMENTS[growth.experiment]) if name != growth.parameter]
    for metric in growth.metrics:
        rows = select(table, metric=metric, **growth.wanted)
        for _, group in rows.groupby(others):
            ordered = group.sort_values(growth.parameter, key=lambda column: column.map(values.index))
            yield from itertools.pairwise(row for _, row in ordered.iterrows())
