"""Builders of this project's sharded optimizers, each with the wrapper for its gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from cs336_systems.benchmarks.comparison.builders.data_parallel import unavailable_here
from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.sharded_gradients import ShardedGradientsDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.parallel.symmetric_memory_optimizer import SymmetricMemoryShardedOptimizer


def state(
    model: nn.Module, contender: Declared, cell: Any, *, kind: Callable[..., Optimizer], **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build the handout's scheme: all gradients on all ranks, with sharded state and update."""
    wrapped = BucketedDataParallel(model, bucket_size_mb=COMMON_MB)
    return wrapped, kind(model.parameters(), AdamW, **hyperparameters)


def gradients(
    model: nn.Module, contender: Declared, cell: Any, *, kind: Callable[..., ShardedOptimizer], **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build the scheme in which ranks also have only their own parameters' gradients."""
    optimizer = kind(model.parameters(), AdamW, **hyperparameters)
    return ShardedGradientsDataParallel(model, optimizer), optimizer


sharded = partial(state, kind=ShardedOptimizer)
sharded_gradients = partial(gradients, kind=ShardedOptimizer)
sharded_symmetric_memory = unavailable_here()(partial(state, kind=SymmetricMemoryShardedOptimizer))
sharded_gradients_symmetric_memory = unavailable_here()(partial(gradients, kind=SymmetricMemoryShardedOptimizer))
