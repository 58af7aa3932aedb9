"""Self-checks of numbers that are sums of other rows, or whole numbers, by definition."""

import math
from collections.abc import Mapping

import numpy
from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.metrics import Metric, metrics_of, wholes
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import parse_samples
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Cases, check, name_row
from scripts.rendering.markup import NOT_MEASURED, fixed_point
from scripts.views.cells import CONTENDER, in_words
from scripts.views.data import measured_gpu, select

ROUNDING = 1e-9
SAMPLE_ROUNDING = 1e-4
"""Samples are kept with five digits."""
TIMED_APART = (0.6, 2.5)
"""The ratio of the sum of parts to their whole if the parts were timed separately in other steps, without overlap."""
BYTES = {"B": 1, "MiB": MIB}


def bounds(part: Metric, on_gpu: bool) -> tuple[float, float]:
    """Bounds of the ratio of the sum of such parts to their whole."""
    if part.timed:
        return TIMED_APART if on_gpu else (0.0, math.inf)
    between = part.between if on_gpu or not part.between else max(part.between, TOLERANCE["CPU"])
    return 1 - max(between, ROUNDING), 1 + max(between, ROUNDING)


@check("{n} sum{s}")
def parts_add_up(tables: Mapping[str, DataFrame]) -> Cases:
    """A quantity with parts (a step, its device time, the memory at its peak) is their sum.

    The sum is exact unless the dictionary of metrics allows gaps between the parts, or they were timed separately.
    """
    for name, table in tables.items():
        kind, table = EXPERIMENTS[name], select(table, status="ok")
        keys = [*parameters(kind), *(column for column in CONTENDER if column in table)]
        for whole, parts in wholes(kind).items():
            part = metrics_of(kind)[parts[0]]
            least, most = bounds(part, bool(measured_gpu({name: table})))
            cells = select(table, metric=whole).set_index(keys)["mean"].to_frame("whole")
            cells["parts"] = table[table["metric"].isin(parts)].groupby(keys)["mean"].sum()
            if not part.exact:
                cells = cells.dropna()
            for _, row in cells.reset_index().iterrows():
                wrong = not least * row["whole"] <= row["parts"] <= most * row["whole"]
                of_whole, of_parts = (fixed_point(row[name], 3, missing=NOT_MEASURED) for name in ("whole", "parts"))
                detail = f"{whole} {of_whole} {kind.metrics[whole]}, parts {of_parts}"
                yield Case(name_row(name, row), wrong, detail)


@check("{n} cell{s}, up to rounding")
def each_step_is_the_sum_of_its_phases(tables: Mapping[str, DataFrame]) -> Cases:
    """Each sample of a step is the sum of its phases' samples.

    The samples are in the order of the steps.
    """
    for name, table in tables.items():
        kind = EXPERIMENTS[name]
        exact = {whole: parts for whole, parts in wholes(kind).items() if metrics_of(kind)[parts[0]].exact}
        for whole, parts in exact.items():
            rows = table[table["metric"].isin([whole, *parts]) & (table["samples"] != "")]
            texts = rows.pivot(index=parameters(kind), columns="metric", values="samples")
            for cell, of_cell in texts.reindex(columns=[whole, *parts]).dropna(subset=whole).iterrows():
                step, *phases = (numpy.array(parse_samples(text)) for text in of_cell.dropna())
                alike = all(len(phase) == len(step) for phase in phases)
                apart = numpy.abs(sum(phases) - step) if alike else numpy.full(len(step), math.inf)
                detail = f"up to {apart.max():.3f} {kind.metrics[whole]} apart"
                yield Case(in_words(kind, cell), bool((apart > SAMPLE_ROUNDING * step).any()), detail)


@check("{n} number{s}")
def counts_are_whole(tables: Mapping[str, DataFrame]) -> Cases:
    """Memory is a whole number of bytes, and every count is a whole number."""
    for name, table in tables.items():
        once = table[(table["status"] == "ok") & (table["n"] == 1)]
        counts = [metric for metric, of in metrics_of(EXPERIMENTS[name]).items() if of.counts]
        rows = once[once["unit"].isin(list(BYTES)) | once["metric"].isin(counts)]
        for _, row in rows.iterrows():
            wrong = row["mean"] * BYTES.get(row["unit"], 1) % 1 != 0
            yield Case(name_row(name, row), wrong, f"{row['metric']} {row['mean']}")
