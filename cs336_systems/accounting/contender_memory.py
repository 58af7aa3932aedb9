"""Closed forms of a rank's memory for contenders that train this project's model on several ranks."""

from collections.abc import Callable
from typing import Any

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.accounting.transformer import adamw_bytes, parameters
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.sizes import parse_size

Needed = Callable[[Any, StepMemory], int]
"""Function from a cell and its single-rank step's memory to about the most bytes that a rank has in use."""


def whole(copies: int = 0, *, shares_state: bool = False) -> Needed:
    """Memory of a contender that keeps everything on each rank.

    Args:
        copies: how often all gradients are in memory, besides the gradients themselves.
        shares_state: whether the optimizer's state is sharded.
    """

    def needed(cell: Any, step: StepMemory) -> int:
        shape = parse_size(cell.size)
        spared = adamw_bytes(shape, cell.vocab_size) * (cell.processes - 1) // cell.processes if shares_state else 0
        return step.peak + copies * FP32_BYTES * parameters(shape, cell.vocab_size) - spared

    return needed


WHOLE = whole()


def shares(*, by_block: bool) -> Needed:
    """Memory of a contender that shards everything, and holds the whole model before."""

    def needed(cell: Any, step: StepMemory) -> int:
        shape = parse_size(cell.size)
        model = FullySharded(
            shape=shape,
            vocab_size=cell.vocab_size,
            ranks=cell.processes,
            precision=cell.precision,
            by_block=by_block,
        )
        return max(peak_bytes(model, step), FP32_BYTES * parameters(shape, cell.vocab_size) + model.weights)

    return needed


def step_memory(cell: Any, *, on_gpu: bool) -> StepMemory:
    """The memory of a cell's training step on a single rank."""
    block = BlockActivations(
        shape=parse_size(cell.size),
        batch_size=cell.batch_size,
        context=cell.context,
        precision=cell.precision,
        attention="plain",
        on_gpu=on_gpu,
    )
    return StepMemory(block=block, vocab_size=cell.vocab_size, segment=0)
