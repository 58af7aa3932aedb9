"""Self-checks of what one Transformer block keeps."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from scripts.check import Check, conclude
from scripts.closed_forms import block_of, saved_mib
from scripts.data import select, statistic

CELL = ["size", "context", "batch_size", "precision", "attention"]
ROUNDING = 1e-6
"""MiB, about a byte."""
ALLOCATOR = 0.02
"""Share that an allocator's blocks may be larger than what was asked for."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["block_memory"]
    yield saved_is_the_closed_form(table)
    yield gradients_are_the_closed_form(table)
    yield allocator_agrees(table)


def cells(table: DataFrame) -> Iterator[tuple[Series, DataFrame]]:
    """Each measured cell: one row of it, and all."""
    for _, row in select(table, metric="saved_activations", status="ok").iterrows():
        yield row, select(table, **{name: row[name] for name in CELL})


def name_cell(row: Series) -> str:
    """A cell in words."""
    return f"{row['label']}, context {row['context']}, {row['precision']}, {row['attention']}"


def saved_is_the_closed_form(table: DataFrame) -> Check:
    """Every tensor that an operator saves is in the closed form, with its dtype, shape and size, and no other is."""
    complaints, examined = [], 0
    for row, rows in cells(table):
        examined += 1
        expected = saved_mib(row)
        saved = select(rows, metric="saved")
        found = {tuple(key): mean for *key, mean in saved[[*BlockMemory.details, "mean"]].itertuples(index=False)}
        differing = [
            " ".join(key) for key in {**expected, **found} if abs(found.get(key, 0) - expected.get(key, 0)) > ROUNDING
        ]
        copies = statistic(rows, "mean", metric="saved_weight_copies") or 0
        if abs(copies - block_of(row).weight_copies / MIB) > ROUNDING:
            differing.append("copies of weights")
        if abs(row["mean"] - sum(found.values())) > ROUNDING * len(found):
            differing.append("the sum")
        if differing:
            complaints.append(f"{name_cell(row)}: {', '.join(differing)}")
    check = "what a block saves for backward is the closed form, tensor by tensor"
    return conclude(check, complaints, examined, f"{examined} cells, to the byte")


def gradients_are_the_closed_form(table: DataFrame) -> Check:
    """A block's gradients are as large as its weights and its input."""
    complaints, examined = [], 0
    for row, rows in cells(table):
        block = block_of(row)
        for metric, expected in (
            ("parameter_gradients", block.parameter_gradients / MIB),
            ("input_gradient", block.residual / MIB),
        ):
            found = statistic(rows, "mean", metric=metric)
            examined += 1
            if found is None or abs(found - expected) > ROUNDING:
                complaints.append(f"{name_cell(row)}: {metric} {found} MiB, expected {expected}")
    check = "a block's gradients are as large as its weights and its input"
    return conclude(check, complaints, examined, f"{examined} sums, to the byte")


def allocator_agrees(table: DataFrame) -> Check:
    """What a pass leaves allocated is what the storages add up to, or a little more."""
    check = "the memory that a block's passes leave allocated is that of the tensors that were found"
    complaints, worst, examined = [], 0.0, 0
    for row, rows in cells(table):
        for metric, parts in (
            ("left_by_forward", ("saved_activations", "saved_weight_copies")),
            ("left_by_backward", ("parameter_gradients", "input_gradient")),
        ):
            left = statistic(rows, "mean", metric=metric)
            if left is None:
                continue
            examined += 1
            tensors = sum(statistic(rows, "mean", metric=part) or 0 for part in parts)
            error = left / tensors - 1
            worst = max(worst, abs(error))
            if not -ROUNDING <= error <= ALLOCATOR:
                complaints.append(f"{name_cell(row)}: {metric} {left:.1f} MiB, tensors {tensors:.1f} MiB")
    summary = f"{examined} passes within {ALLOCATOR:.0%}; largest difference {worst:.1%}"
    return conclude(check, complaints, examined, summary if examined else "allocated memory is counted on GPUs only")
