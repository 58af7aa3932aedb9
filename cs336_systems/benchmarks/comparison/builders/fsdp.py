"""Builders of this project's sharded contenders: optimizer state over symmetric memory, and FSDP."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from cs336_systems.benchmarks.comparison.builders.data_parallel import unavailable_here
from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from cs336_systems.parallel.symmetric_memory_optimizer import SymmetricMemoryShardedOptimizer
from cs336_systems.training import compiled_blocks

COMPUTE_DTYPE = {"fp32": None, "bf16": torch.bfloat16}


@unavailable_here()
def sharded_optimizer(
    model: nn.Module, contender: Declared, cell: Any, **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build replicated weights and gradients with a sharded optimizer, both over symmetric memory."""
    wrapped = SymmetricMemoryDataParallel(model, bucket_size_mb=COMMON_MB)
    return wrapped, SymmetricMemoryShardedOptimizer(wrapped.parameters(), AdamW, **hyperparameters)


def shard(
    model: nn.Module, contender: Declared, cell: Any, *, by_block: bool, **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build FSDP, gathered per layer or per block.

    Raises:
        Unavailable: blocks are compiled, whose layers are gathered together, or the model has none.
    """
    if cell.compiled and not by_block:
        raise Unavailable("a compiled block gathers all its layers at once")
    together = (type(blocks_of(model)[0]),) if by_block else ()
    wrapped = FullyShardedDataParallel(model, COMPUTE_DTYPE[cell.precision], together=together)
    return wrapped, AdamW(wrapped.parameters(), **hyperparameters)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Find a model's blocks.

    Raises:
        Unavailable: the model has none.
    """
    try:
        return compiled_blocks.blocks_of(model)
    except ValueError as error:
        raise Unavailable(str(error)) from None


fsdp = partial(shard, by_block=False)
fsdp_blocks = partial(shard, by_block=True)
