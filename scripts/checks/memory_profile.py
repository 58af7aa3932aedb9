"""Self-checks of the memory profile."""

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure import memory_timeline as of
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import parse_size
from scripts.checks import Case, Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import held_by_training, step_of
from scripts.views.data import select, statistic

MEASURED = "peak_allocated"
"""The metric that every measured cell has."""
NOT_MEASURED = "memory is followed on GPUs only"
UNCLASSIFIED_LIMIT = 0.02
PERSISTENT = (of.PARAMETERS, of.OPTIMIZER_STATE)
ACTIVATIONS_TOLERANCE = 0.02
"""Relative difference of what is saved: a library may save numbers of its own."""
PEAK_TOLERANCE = 0.01
"""Relative difference between peaks of one step in two processes, whose blocks may be divided differently."""


@check("{n} cells, to the byte", NOT_MEASURED)
def replay_is_exact(memory_profile: DataFrame) -> Evidence:
    """The replayed memory timeline's peak is torch.cuda.max_memory_allocated, and its parts add up to it."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        replayed = statistic(rows, "mean", metric="peak_replayed")
        parts = select(rows, metric="at_peak")["mean"].sum()
        found = f"{row['mean']:.0f} B, replayed {replayed or 0:.0f} B, parts {parts:.0f} B"
        yield Case(name_cell(row), not row["mean"] == replayed == parts, found)


@check("{n} cells, to the byte", NOT_MEASURED)
def state_is_what_the_shape_says(memory_profile: DataFrame) -> Evidence:
    """Parameters, gradients, AdamW's state and bf16 copies of weights have the bytes of their closed forms."""
    for row, rows in cells(select(memory_profile, model=MemoryProfile.model), MemoryProfile, MEASURED):
        yield 1
        for category, expected in closed_forms(row).items():
            found = statistic(rows, "mean", metric="most", category=category) or 0
            if found != expected:
                yield f"{name_cell(row)}: {category} {found:.0f} B, expected {expected} B"


def closed_forms(row: Series) -> dict[str, int]:
    """Bytes by category, less the allocator's rounding, that a cell must have."""
    absent: list[str] = []
    if row["mode"] != "train_step":
        absent += [of.GRADIENTS, of.OPTIMIZER_STATE]
    if row["precision"] != "bf16":
        absent.append(of.WEIGHT_COPIES)
    return held_by_training(row) | dict.fromkeys(absent, 0)


@check("{n} cells, to the byte", NOT_MEASURED)
def state_is_there_at_the_peak(memory_profile: DataFrame) -> Evidence:
    """At a step's peak parameters and AdamW's state are there, and no more of anything than at any time."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        yield 1
        at_peak, most = (select(rows, metric=name).set_index("category")["mean"] for name in ("at_peak", "most"))
        for category, count in at_peak.items():
            if count > most.get(category, 0) or (category in PERSISTENT and count != most.get(category)):
                yield f"{name_cell(row)}: {category} {count:.0f} B of {most.get(category, 0):.0f} B"


@check("{n} cells; largest difference {most:.2%}", NOT_MEASURED)
def activations_are_what_the_shape_says(memory_profile: DataFrame) -> Evidence:
    """Activations that are saved for the backward pass have the bytes of their closed form.

    Copies of weights are left out.
    """
    eager = select(memory_profile, model=MemoryProfile.model)
    for row, rows in cells(eager[eager["mode"] != "inference"], MemoryProfile, MEASURED):
        closed_form = step_of(row).saved_for_backward
        expected = closed_form - (held_by_training(row)[of.WEIGHT_COPIES] if row["precision"] == "bf16" else 0)
        found = statistic(rows, "mean", metric="most", category=of.ACTIVATIONS) or 0
        error = abs(found / expected - 1)
        said = f"{found / MIB:.0f} MiB, {expected / MIB:.0f} MiB expected"
        yield Case(name_cell(row), error > ACTIVATIONS_TOLERANCE, said, error)


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


@check("{n} cells; largest difference {most:.2%}", "no step was both followed and timed on a GPU")
def peaks_agree(memory_profile: DataFrame, end_to_end: DataFrame) -> Evidence:
    """A step's peak memory is the same when its allocations are followed and when it is timed."""
    timed = select(end_to_end, metric="peak_memory", compiled=False)
    timed = timed[timed["warmup"] == timed["warmup"].max()]
    for row, _ in cells(memory_profile, MemoryProfile, MEASURED):
        for peak in select(timed, **{name: row[name] for name in parameters(MemoryProfile)})["mean"] * MIB:
            error = abs(row["mean"] - peak) / peak
            found = f"{row['mean'] / MIB:.0f} MiB against {peak / MIB:.0f} MiB"
            yield Case(name_cell(row), error > PEAK_TOLERANCE, found, error)
