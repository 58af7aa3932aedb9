"""Builders of this project's wrappers: data parallelism, sharded optimizers and FSDP."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
)
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.sharded_gradients import ShardedGradientsDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from cs336_systems.parallel.symmetric_memory_optimizer import SymmetricMemoryShardedOptimizer
from cs336_systems.training import compiled_blocks

Wrap = Callable[..., nn.Module]
Built = tuple[nn.Module, Optimizer]
COMPUTE_DTYPE = {"fp32": None, "bf16": torch.bfloat16}


@contextlib.contextmanager
def unavailable_here() -> Iterator[None]:
    """Convert the RuntimeError of a class that cannot work here, for example without NVLink, into `Unavailable`."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(str(error)) from None


def whole(model: nn.Module, contender: Declared, cell: Any, *, wrap: Wrap, **hyperparameters: Any) -> Built:
    """Build a wrapper without buckets."""
    return wrap(model), AdamW(model.parameters(), **hyperparameters)


def in_buckets(model: nn.Module, contender: Declared, cell: Any, *, wrap: Wrap, **hyperparameters: Any) -> Built:
    """Build a wrapper with buckets of the contender's size, or of the common size."""
    wrapped = wrap(model, bucket_size_mb=contender.bucket_mb or COMMON_MB)
    return wrapped, AdamW(model.parameters(), **hyperparameters)


alone = partial(whole, wrap=lambda model: model)
naive = partial(whole, wrap=NaiveDataParallel)
flat = partial(whole, wrap=FlatDataParallel)
overlapped = partial(whole, wrap=OverlappedDataParallel)
bucketed = partial(in_buckets, wrap=BucketedDataParallel)
symmetric_memory = unavailable_here()(partial(in_buckets, wrap=SymmetricMemoryDataParallel))


def state(
    model: nn.Module, contender: Declared, cell: Any, *, kind: Callable[..., Optimizer], **hyperparameters: Any
) -> Built:
    """Build the handout's scheme: all gradients on all ranks, with sharded state and update."""
    wrapped = BucketedDataParallel(model, bucket_size_mb=COMMON_MB)
    return wrapped, kind(model.parameters(), AdamW, **hyperparameters)


def gradients(
    model: nn.Module, contender: Declared, cell: Any, *, kind: Callable[..., ShardedOptimizer], **hyperparameters: Any
) -> Built:
    """Build the scheme in which ranks also have only their own parameters' gradients."""
    optimizer = kind(model.parameters(), AdamW, **hyperparameters)
    return ShardedGradientsDataParallel(model, optimizer), optimizer


sharded = partial(state, kind=ShardedOptimizer)
sharded_gradients = partial(gradients, kind=ShardedOptimizer)
sharded_symmetric_memory = unavailable_here()(partial(state, kind=SymmetricMemoryShardedOptimizer))
sharded_gradients_symmetric_memory = unavailable_here()(partial(gradients, kind=SymmetricMemoryShardedOptimizer))


@unavailable_here()
def sharded_optimizer(model: nn.Module, contender: Declared, cell: Any, **hyperparameters: Any) -> Built:
    """Build replicated weights and gradients with a sharded optimizer, both over symmetric memory."""
    wrapped = SymmetricMemoryDataParallel(model, bucket_size_mb=COMMON_MB)
    return wrapped, SymmetricMemoryShardedOptimizer(wrapped.parameters(), AdamW, **hyperparameters)


def shard(model: nn.Module, contender: Declared, cell: Any, *, by_block: bool, **hyperparameters: Any) -> Built:
    """Build FSDP, gathered per layer or per block; Unavailable if blocks are compiled, or the model has none."""
    if cell.compiled and not by_block:
        raise Unavailable("a compiled block gathers all its layers at once")
    together = (type(blocks_of(model)[0]),) if by_block else ()
    wrapped = FullyShardedDataParallel(model, COMPUTE_DTYPE[cell.precision], together=together)
    return wrapped, AdamW(wrapped.parameters(), **hyperparameters)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Find a model's blocks; Unavailable if it has none."""
    try:
        return compiled_blocks.blocks_of(model)
    except ValueError as error:
        raise Unavailable(str(error)) from None


fsdp = partial(shard, by_block=False)
fsdp_blocks = partial(shard, by_block=True)
