"""Builders of a user's own implementations, called as the course's adapters call them."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from cs336_systems.adapters import Adapters, Wrapped
from cs336_systems.benchmarks.comparison.builders.ours import COMPUTE_DTYPE, state
from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.implementations import load_path, own_implementations

Build = Callable[..., tuple[nn.Module | Wrapped, Optimizer]]


def build_own(
    model: nn.Module, contender: Declared, cell: Any, **hyperparameters: Any
) -> tuple[nn.Module | Wrapped, Optimizer]:
    """Build a user's wrapper, or a sharded optimizer next to this project's wrapper.

    Buckets have the common size, if there are any; FSDP handles the compute dtype itself.
    """
    adapters = Adapters(contender.builder)
    if cell.name == "optimizer_sharding":
        return state(model, contender, cell, kind=adapters.sharded_optimizer, **hyperparameters)
    if cell.name == FullyShardedTraining.name:
        wrapped = adapters.fsdp(model, COMPUTE_DTYPE[cell.precision])
    else:
        wrapped = adapters.data_parallel(model, COMMON_MB)
    return wrapped, AdamW(wrapped.model.parameters(), **hyperparameters)


def own_contenders(cell: Any) -> Iterator[Declared]:
    """Make entries for a cell's own implementations, in addition to its experiment's contenders."""
    shards = cell.name == FullyShardedTraining.name
    for implementation in own_implementations(cell):
        yield Declared(
            name=implementation.name,
            title=implementation.name,
            builder=implementation.path,
            own=True,
            scheme="FSDP" if shards else "data parallel",
            autocasts=not shards,
        )


def builder_of(contender: Declared) -> Build:
    """Look up the builder of a contender, a function of a model, its entry, the cell and hyperparameters."""
    if contender.own:
        return build_own
    build: Build = load_path(contender.builder)
    return build
