"""Self-checks of what one Transformer block keeps."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from scripts.checks import Case, Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import block_of, not_as_derived
from scripts.views.data import select, statistic
from scripts.views.units import BYTE

MEASURED = "saved_activations"
"""The metric that every measured cell has."""
ALLOCATOR_TOLERANCE = 0.02
"""Share that an allocator's blocks may be larger than what was asked for."""


@check("{n} cells, to the byte")
def saved_is_the_closed_form(block_memory: DataFrame) -> Evidence:
    """What a block saves for backward is the closed form, tensor by tensor.

    That is, with dtype, shape and size of each, and no other.
    """
    for row, rows in cells(block_memory, BlockMemory, MEASURED):
        differing = not_as_derived(row, rows)
        copies = statistic(rows, "mean", metric="saved_weight_copies") or 0
        if abs(copies - block_of(row).weight_copies / MIB) > BYTE:
            differing.append("copies of weights")
        if abs(row["mean"] - select(rows, metric="saved")["mean"].sum()) > BYTE:
            differing.append("the sum")
        yield Case(name_cell(row), bool(differing), ", ".join(differing))


@check("{n} sums, to the byte")
def gradients_are_the_closed_form(block_memory: DataFrame) -> Evidence:
    """A block's gradients are as large as its weights and its input."""
    for row, rows in cells(block_memory, BlockMemory, MEASURED):
        block = block_of(row)
        for metric, size in (("parameter_gradients", block.parameter_gradients), ("input_gradient", block.residual)):
            found, expected = statistic(rows, "mean", metric=metric), size / MIB
            if found is not None:
                yield Case(name_cell(row), abs(found - expected) > BYTE, f"{metric} {found} MiB, expected {expected}")


@check(
    "{n} passes within {ALLOCATOR_TOLERANCE:.0%}; largest difference {most:.1%}",
    "allocated memory is counted on GPUs only",
)
def allocator_agrees(block_memory: DataFrame) -> Evidence:
    """The memory that a block's passes leave allocated is that of the tensors that were found."""
    for row, rows in cells(block_memory, BlockMemory, MEASURED):
        for metric, *parts in (
            ("left_by_forward", "saved_activations", "saved_weight_copies"),
            ("left_by_backward", "parameter_gradients", "input_gradient"),
        ):
            left, *counted = (statistic(rows, "mean", metric=name) for name in (metric, *parts))
            if left is None or None in counted:
                continue
            tensors = sum(size for size in counted if size is not None)
            wrong = not tensors - BYTE <= left <= (1 + ALLOCATOR_TOLERANCE) * tensors
            found = f"{metric} {left:.1f} MiB, tensors {tensors:.1f} MiB"
            yield Case(name_cell(row), wrong, found, abs(left / tensors - 1))
