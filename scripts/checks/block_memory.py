"""Self-checks of what one Transformer block keeps."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from scripts.checks import Check, conclude
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import block_of, not_as_derived
from scripts.views.data import select, statistic
from scripts.views.units import BYTE

MEASURED = "saved_activations"
"""The metric that every measured cell has."""
ALLOCATOR_TOLERANCE = 0.02
"""Share that an allocator's blocks may be larger than what was asked for."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["block_memory"]
    yield saved_is_the_closed_form(table)
    yield gradients_are_the_closed_form(table)
    yield allocator_agrees(table)


def saved_is_the_closed_form(table: DataFrame) -> Check:
    """Every tensor that an operator saves is in the closed form, with its dtype, shape and size, and no other is."""
    complaints, examined = [], 0
    for row, rows in cells(table, BlockMemory, MEASURED):
        examined += 1
        differing = not_as_derived(row, rows)
        copies = statistic(rows, "mean", metric="saved_weight_copies") or 0
        if abs(copies - block_of(row).weight_copies / MIB) > BYTE:
            differing.append("copies of weights")
        if abs(row["mean"] - select(rows, metric="saved")["mean"].sum()) > BYTE:
            differing.append("the sum")
        if differing:
            complaints.append(f"{name_cell(row)}: {', '.join(differing)}")
    check = "what a block saves for backward is the closed form, tensor by tensor"
    return conclude(check, complaints, examined, f"{examined} cells, to the byte")


def gradients_are_the_closed_form(table: DataFrame) -> Check:
    """A block's gradients are as large as its weights and its input."""
    complaints, examined = [], 0
    for row, rows in cells(table, BlockMemory, MEASURED):
        block = block_of(row)
        for metric, expected in (
            ("parameter_gradients", block.parameter_gradients / MIB),
            ("input_gradient", block.residual / MIB),
        ):
            found = statistic(rows, "mean", metric=metric)
            if found is None:
                continue
            examined += 1
            if abs(found - expected) > BYTE:
                complaints.append(f"{name_cell(row)}: {metric} {found} MiB, expected {expected}")
    check = "a block's gradients are as large as its weights and its input"
    return conclude(check, complaints, examined, f"{examined} sums, to the byte")


def allocator_agrees(table: DataFrame) -> Check:
    """What a pass leaves allocated is what the storages add up to, or a little more."""
    check = "the memory that a block's passes leave allocated is that of the tensors that were found"
    complaints, worst, examined = [], 0.0, 0
    for row, rows in cells(table, BlockMemory, MEASURED):
        for metric, parts in (
            ("left_by_forward", ("saved_activations", "saved_weight_copies")),
            ("left_by_backward", ("parameter_gradients", "input_gradient")),
        ):
            left = statistic(rows, "mean", metric=metric)
            counted = [statistic(rows, "mean", metric=part) for part in parts]
            if left is None or None in counted:
                continue
            examined += 1
            tensors = sum(size for size in counted if size is not None)
            worst = max(worst, abs(left / tensors - 1))
            if not tensors - BYTE <= left <= (1 + ALLOCATOR_TOLERANCE) * tensors:
                complaints.append(f"{name_cell(row)}: {metric} {left:.1f} MiB, tensors {tensors:.1f} MiB")
    summary = f"{examined} passes within {ALLOCATOR_TOLERANCE:.0%}; largest difference {worst:.1%}"
    return conclude(check, complaints, examined, summary if examined else "allocated memory is counted on GPUs only")
