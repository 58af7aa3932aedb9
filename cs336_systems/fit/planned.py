"""Planned cells that certainly exceed the GPU's memory: reported before they are tried."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from cs336_systems.accounting.peak_memory import inputs_and_gradients_bytes, possible_peaks
from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment
from cs336_systems.fit.gpus import gpu_of_label, memory_of
from cs336_systems.fit.verdict import outcome
from cs336_systems.sizes import size_name

GB = 1e9


@cache
def too_large(cell: Experiment, machine: str) -> str:
    """Why a cell cannot be measured on a machine's GPUs, named by its label; empty if it may be.

    A cell with several contenders or rungs is too large if none of them fits. Within the closed form's error it may
    fit.
    """
    gpu = gpu_of_label(machine)
    return exceeds(memory_of(gpu), cell, "the GPU") if gpu else ""


def exceeds(capacity: float, cell: Experiment, owner: str) -> str:
    """Why a cell certainly does not fit into its owner's bytes; empty if it may, or has no closed form."""
    settings = cell.training_steps().values()
    if any(outcome(setting, capacity) != "does not fit" for setting in settings):
        return ""
    needed = least_memory(settings) if settings else attention_bytes(cell)
    if needed <= capacity:
        return ""
    return f"it needs {needed / GB:.0f} GB by closed form, and {owner} has {capacity / GB:.0f}"


def least_memory(settings: Iterable[Setting]) -> int:
    """Bytes of the smallest possible peak of some settings."""
    return min(use.total for setting in settings for use in possible_peaks(setting))


def attention_bytes(cell: Any) -> int:
    """Bytes that any attention needs for a cell's inputs and their gradients; 0 if the cell is not of attention."""
    if not hasattr(cell, "d"):
        return 0
    heads = getattr(cell, "batch_size", 1) * getattr(cell, "heads", 1)
    return inputs_and_gradients_bytes(heads, cell.sequence, cell.d, cell.precision)


def describe_too_large(cells: Any, machine: str) -> Iterator[str]:
    """A sentence about each cell that cannot fit."""
    for cell in cells:
        if why := too_large(cell, machine):
            context = [f"context {cell.context}"] if hasattr(cell, "context") else []
            precision = [cell.precision] if hasattr(cell, "precision") else []
            yield f"{', '.join([cell.name, size_of(cell), *context, *precision])}: {why}"


def size_of(cell: Any) -> str:
    """The model size of a cell, or its sequence length."""
    return size_name(cell.size) if hasattr(cell, "size") else f"sequence {getattr(cell, 'sequence', 1)}"
