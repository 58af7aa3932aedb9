"""Self-checks of what one Transformer block keeps."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from scripts.checks import Case, Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import block_of, not_as_derived
from scripts.views.data import statistic
from scripts.views.units import BYTE

MEASURED = "saved_activations"
"""The metric that every measured cell has."""
LEFT = {
    "left_by_forward": ("saved_activations", "saved_weight_copies"),
    "left_by_backward": ("parameter_gradients", "input_gradient"),
}
"""The tensors that each pass leaves."""
ALLOCATOR_TOLERANCE = 0.02
"""Share that an allocator's blocks may be larger than what was asked for."""


@check("{n} cells, to the byte")
def tensors_are_the_closed_form(block_memory: DataFrame) -> Evidence:
    """What a block saves for backward, and its gradients, are the closed form, tensor by tensor.

    That is, with dtype, shape and size of each, and no other. Gradients are as large as the weights and the input.
    """
    for row, rows in cells(block_memory, BlockMemory, MEASURED):
        block = block_of(row)
        differing = not_as_derived(row, rows)
        for metric, expected in (
            ("saved_weight_copies", block.weight_copies),
            ("parameter_gradients", block.parameter_gradients),
            ("input_gradient", block.residual),
        ):
            found = statistic(rows, "mean", metric=metric)
            if found is not None and abs(found - expected / MIB) > BYTE:
                differing.append(f"{metric} {found} MiB, expected {expected / MIB}")
        yield Case(name_cell(row), bool(differing), ", ".join(differing))


@check(
    "{n} passes within {ALLOCATOR_TOLERANCE:.0%}; largest difference {most:.1%}",
    "allocated memory is counted on GPUs only",
)
def allocator_agrees(block_memory: DataFrame) -> Evidence:
    """The memory that a block's passes leave allocated is that of the tensors that were found."""
    for row, rows in cells(block_memory, BlockMemory, MEASURED):
        for metric, parts in LEFT.items():
            left, *counted = (statistic(rows, "mean", metric=name) for name in (metric, *parts))
            if left is None or None in counted:
                continue
            tensors = sum(size for size in counted if size is not None)
            wrong = not tensors - BYTE <= left <= (1 + ALLOCATOR_TOLERANCE) * tensors
            found = f"{metric} {left:.1f} MiB, tensors {tensors:.1f} MiB"
            yield Case(name_cell(row), wrong, found, abs(left / tensors - 1))
