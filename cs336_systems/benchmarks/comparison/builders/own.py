"""Builders of a user's own implementations, called as the course's adapters call them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from cs336_systems.adapters import Adapters, Wrapped
from cs336_systems.benchmarks.comparison.builders.ours import COMPUTE_DTYPE, Built, state
from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.implementations import load_path, own_implementations

Build = Callable[..., tuple[nn.Module | Wrapped, Optimizer]]


def data_parallel(
    model: nn.Module, contender: Declared, cell: Any, *, own: Adapters, **hyperparameters: Any
) -> tuple[Wrapped, Optimizer]:
    """Build a data-parallel wrapper, with buckets of the common size if it has any."""
    wrapped = own.data_parallel(model, COMMON_MB)
    return wrapped, AdamW(wrapped.model.parameters(), **hyperparameters)


def sharded_optimizer(
    model: nn.Module, contender: Declared, cell: Any, *, own: Adapters, **hyperparameters: Any
) -> Built:
    """Build a sharded optimizer, next to this project's wrapper."""
    return state(model, contender, cell, kind=own.sharded_optimizer, **hyperparameters)


def fsdp(
    model: nn.Module, contender: Declared, cell: Any, *, own: Adapters, **hyperparameters: Any
) -> tuple[Wrapped, Optimizer]:
    """Build a wrapper that shards weights, and handles the compute dtype itself."""
    wrapped = own.fsdp(model, COMPUTE_DTYPE[cell.precision])
    return wrapped, AdamW(wrapped.model.parameters(), **hyperparameters)


CALLS: Mapping[str, Build] = {"data_parallel": data_parallel, "optimizer_sharding": sharded_optimizer, "fsdp": fsdp}


def own_contenders(cell: Any) -> Iterator[Declared]:
    """Make entries for a cell's own implementations, in addition to its experiment's contenders."""
    shards = cell.name == FullyShardedTraining.name
    for own in own_implementations(cell):
        yield Declared(
            name=own.name,
            title=own.name,
            builder=own.path,
            own=True,
            scheme="FSDP" if shards else "data parallel",
            autocasts=not shards,
        )


def builder_of(contender: Declared, cell: Any) -> Build:
    """Look up the builder of a contender, a function of a model, its entry, the cell and hyperparameters."""
    if contender.own:
        return partial(CALLS[cell.name], own=Adapters(contender.builder))
    build: Build = load_path(contender.builder)
    return build
