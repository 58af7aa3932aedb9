"""Self-checks of the memory profile: of its closed forms, and of its timeline against the peaks that were counted."""

import math

import numpy
from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure import memory_timeline as of
from cs336_systems.record.measurement import parse_samples
from cs336_systems.sizes import parse_size
from scripts.checks import Case, Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import held_by_training, step_of
from scripts.views.data import one, select, statistic

MEASURED = "peak_allocated"
"""The metric that every measured cell has."""
NOT_MEASURED = "memory is followed on GPUs only"
UNCLASSIFIED_LIMIT = 0.02
PERSISTENT = (of.PARAMETERS, of.OPTIMIZER_STATE)
ACTIVATIONS_TOLERANCE = 0.02
"""Relative difference of what is saved: a library may save numbers of its own."""
ROUNDING = 1e-4
"""Of a sum of samples that are kept with five digits."""
DETAILS = list(MemoryProfile.details)


@check("{n} cells, to the byte", NOT_MEASURED)
def peak_is_the_same(memory_profile: DataFrame) -> Evidence:
    """A step's peak memory is torch.cuda.max_memory_allocated, the replayed timeline's peak, and that of the stage
    named for it.
    """
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        stages = select(rows, metric="stage_peak").set_index("stage")["mean"]
        named = one(rows, metric="peak_stage")
        peaks = {statistic(rows, "mean", metric="peak_replayed")}
        if len(stages) and named is not None:
            peaks |= {stages.max(), stages.get(named["value"])}
        found = f"{row['mean']} B, replayed or of a stage {' and '.join(map(str, peaks))}"
        yield Case(name_cell(row), peaks != {row["mean"]}, found)


@check("{n} sizes, to the byte; activations within {ACTIVATIONS_TOLERANCE:.0%}", NOT_MEASURED)
def held_is_what_the_shape_says(memory_profile: DataFrame) -> Evidence:
    """Parameters, gradients, AdamW's state, bf16 copies of weights and saved activations have the bytes of their
    closed forms.
    """
    for row, rows in cells(select(memory_profile, model=MemoryProfile.model), MemoryProfile, MEASURED):
        most = select(rows, metric="most").set_index("category")["mean"]
        for category, expected in closed_forms(row).items():
            found = most.get(category, 0)
            tolerance = ACTIVATIONS_TOLERANCE if category == of.ACTIVATIONS else 0.0
            said = f"{category} {found:.0f} B, expected {expected} B"
            yield Case(name_cell(row), abs(found - expected) > tolerance * expected, said)


def closed_forms(row: Series) -> dict[str, int]:
    """Bytes by category, less the allocator's rounding, that a cell must have."""
    held = held_by_training(row)
    if row["precision"] != "bf16":
        held[of.WEIGHT_COPIES] = 0
    if row["mode"] != "inference":
        held[of.ACTIVATIONS] = step_of(row).saved_for_backward - held[of.WEIGHT_COPIES]
    absent = [] if row["mode"] == "train_step" else [of.GRADIENTS, of.OPTIMIZER_STATE]
    return held | dict.fromkeys(absent, 0)


@check("{n} cells; at most {most:.1%}", NOT_MEASURED)
def memory_is_classified(memory_profile: DataFrame) -> Evidence:
    """Less than {UNCLASSIFIED_LIMIT:.0%} of the memory at the peak is unclassified."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        share = (statistic(rows, "mean", metric="at_peak", category=of.UNCLASSIFIED) or 0) / row["mean"]
        yield Case(name_cell(row), share >= UNCLASSIFIED_LIMIT, f"{share:.1%}", float(share))


@check("{n} cells", NOT_MEASURED)
def residual_stream_is_found(memory_profile: DataFrame) -> Evidence:
    """The forward pass makes a tensor of the residual stream's derived size twice per block, by an addition."""
    for row, rows in cells(select(memory_profile, model=MemoryProfile.model), MemoryProfile, MEASURED):
        shape = parse_size(row["size"])
        found = select(rows, metric="residual_tensors", operator="add")["mean"].sum()
        size = residual_bytes(shape, row["batch_size"], row["context"])
        said = f"{found:.0f} of {2 * shape.num_layers} additions make {size} B"
        yield Case(name_cell(row), found != 2 * shape.num_layers, said)


def moments_of(row: Series) -> list[float]:
    """A category's memory at each moment of a stage, MiB."""
    return parse_samples(row["samples"]) or [float(row["mean"])]


@check("{n} stages", NOT_MEASURED)
def timeline_has_the_peaks(memory_profile: DataFrame) -> Evidence:
    """The memory timeline reaches each stage's peak, no more."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        for stage, active in select(rows, metric="active").groupby("stage"):
            peak = statistic(rows, "mean", metric="stage_peak", stage=stage)
            moments = active.apply(moments_of, axis=1)
            alike = moments.map(len).nunique() == 1
            reached = MIB * numpy.sum(list(moments), axis=0).max() if alike else math.inf
            if peak is not None:
                found = f"{stage} {reached:.0f} B, peak {peak:.0f} B"
                yield Case(name_cell(row), abs(reached / peak - 1) > ROUNDING, found)


@check("{n} categories", NOT_MEASURED)
def categories_have_a_most(memory_profile: DataFrame) -> Evidence:
    """No category of memory is ever above its most, at which parameters and AdamW's state are at the peak."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        most = select(rows, metric="most").set_index("category")["mean"]
        active = select(rows, metric="active")
        seen = {
            "at the peak": select(rows, metric="at_peak"),
            "at a stage's end": select(rows, metric="stage_end"),
            "in the timeline": active.assign(mean=MIB * active.apply(moments_of, axis=1).map(max)),
        }
        for where, amounts in seen.items():
            for category, amount in amounts.groupby("category")["mean"].max().items():
                limit = most.get(category, 0)
                less = where == "at the peak" and category in PERSISTENT and amount != limit
                found = f"{category} {where} {amount:.0f} B, at most {limit:.0f} B"
                yield Case(name_cell(row), less or amount > (1 + ROUNDING) * limit, found)


@check("{n} cells", NOT_MEASURED)
def allocations_have_a_lifetime(memory_profile: DataFrame) -> Evidence:
    """The largest allocations are by size, and each that ends has a lifetime."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        listed = select(rows, metric="allocation").astype({"rank": int}).sort_values("rank")
        freed, lasting = (
            set(map(tuple, chosen[[*DETAILS, "n"]].astype({"rank": int}).to_numpy()))
            for chosen in (listed[listed["freed"] != ""], select(rows, metric="lifetime"))
        )
        by_size = list(listed["rank"]) == list(range(1, len(listed) + 1)) and listed["mean"].is_monotonic_decreasing
        found = f"by size: {by_size}; {len(freed ^ lasting)} without allocation or lifetime"
        yield Case(name_cell(row), not by_size or freed != lasting, found)
