"""Self-checks of a whole step's peak memory against its closed form."""

from pandas import DataFrame, Series

from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.memory_timeline import OPTIMIZER_STATE, PARAMETERS, WEIGHT_COPIES
from scripts.checks import Case, Evidence, check
from scripts.views.cells import name_cell
from scripts.views.closed_forms import held_by_training, step_of
from scripts.views.data import select

SHORT = 0.01
"""Share by which a peak may be below the closed form, for what an allocator or a library leaves out."""
ABOVE = 0.05
"""Share by which it may be above, for what kernels need while they run."""
WORKSPACES = 64
"""MiB by which it may be above besides: cuBLAS's workspaces of two threads, on a Hopper GPU."""
UNDERIVED = "sdpa"
"""Attention that has no closed form here: PyTorch's."""


@check("{n} cells, {SHORT:.0%} less to {ABOVE:.0%} and {WORKSPACES} MiB more", "peak memory is counted on GPUs only")
def peak_is_the_closed_form(end_to_end: DataFrame) -> Evidence:
    """The peak memory of a timed step is that of the closed form; of a compiled one no more."""
    peaks = select(end_to_end, metric="peak_memory", model=EndToEnd.model)
    for _, row in peaks[peaks["attention"] != UNDERIVED].iterrows():
        least, most = (bound / MIB for bound in bounds(row))
        found = f"{row['mean']:.0f} MiB, derived {least:.0f} to {most:.0f} MiB"
        yield Case(name_cell(row), not (1 - SHORT) * least <= row["mean"] <= (1 + ABOVE) * most + WORKSPACES, found)


def bounds(row: Series) -> tuple[int, int]:
    """The least and the most that a step's closed form allows at its peak, bytes."""
    step, held = step_of(row), held_by_training(row)
    weights = held[PARAMETERS]
    copies = held[WEIGHT_COPIES] if row["precision"] == "bf16" else 0
    match row["mode"]:
        case "train_step":
            least = most = step.peak
        case "forward_backward":
            least = most = step.peak - held[OPTIMIZER_STATE]
        case "forward":
            least = most = weights + step.saved_for_backward
        case "inference":
            # Without a graph no more is kept than one block would save, and the logits.
            least = weights + copies
            most = least + step.block.saved_bytes + FP32_BYTES * step.block.tokens * step.vocab_size
    return (weights, most) if row["compiled"] else (least, most)
