"""The optimizers that are compared, each with the data-parallel wrapper that makes its gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from cs336_systems.benchmarks.contest.contenders import ddp_view, unavailable_here
from cs336_systems.experiments.data_parallel import VARIATION_MB
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.peer_memory_optimizer import PeerMemoryShardedOptimizer
from cs336_systems.parallel.sharded_gradients import ShardedGradientsDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer

Make = Callable[..., tuple[nn.Module, Optimizer]]
"""From a model and AdamW's hyperparameters to that model wrapped, and its optimizer."""
MakeSharded = Callable[..., ShardedOptimizer]
"""From parameters, the class of the optimizer and its hyperparameters."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to train with data parallelism."""

    name: str
    """Its name in the experiment's rows."""
    make: Make
    """It may raise `Unavailable`."""
    foreign: bool = False
    """Whether it is a library's."""
    copies: int
    """How often it has all gradients or all weights in memory, besides weights, gradients and optimizer state."""


def unsharded(model: nn.Module, **hyperparameters: Any) -> tuple[nn.Module, Optimizer]:
    """Each rank has the whole state, and makes the same update."""
    wrapped = BucketedDataParallel(model, bucket_size_mb=VARIATION_MB)
    return wrapped, AdamW(model.parameters(), **hyperparameters)


def sharded(model: nn.Module, *, kind: MakeSharded, **hyperparameters: Any) -> tuple[nn.Module, Optimizer]:
    """The handout's scheme: the same gradients on all ranks, the state and the update of own parameters alone."""
    wrapped = BucketedDataParallel(model, bucket_size_mb=VARIATION_MB)
    return wrapped, kind(model.parameters(), AdamW, **hyperparameters)


def sharded_gradients(model: nn.Module, *, kind: MakeSharded, **hyperparameters: Any) -> tuple[nn.Module, Optimizer]:
    """Ranks also have the gradients of their own parameters alone."""
    optimizer = kind(model.parameters(), AdamW, **hyperparameters)
    return ShardedGradientsDataParallel(model, optimizer), optimizer


def over_peer_memory(*arguments: Any, **hyperparameters: Any) -> ShardedOptimizer:
    """An optimizer that sends parameters without collectives, or the reason why it cannot."""
    with unavailable_here():
        return PeerMemoryShardedOptimizer(*arguments, **hyperparameters)


def zero_redundancy(
    model: nn.Module, *, wrap: Callable[[nn.Module], nn.Module], views: bool, **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """PyTorch's; `views` makes parameters views of the buckets that are broadcast."""
    wrapped = wrap(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, parameters_as_bucket_view=views, **hyperparameters)
    return wrapped, optimizer


theirs = partial(Contender, foreign=True)
CONTENDERS = (
    Contender(name="unsharded", make=unsharded, copies=1),
    Contender(name="sharded", make=partial(sharded, kind=ShardedOptimizer), copies=1),
    Contender(name="sharded_peer_memory", make=partial(sharded, kind=over_peer_memory), copies=1),
    Contender(name="sharded_gradients", make=partial(sharded_gradients, kind=ShardedOptimizer), copies=0),
    Contender(name="sharded_gradients_peer_memory", make=partial(sharded_gradients, kind=over_peer_memory), copies=0),
    theirs(name="zero_redundancy", make=partial(zero_redundancy, wrap=DistributedDataParallel, views=False), copies=2),
    theirs(
        name="zero_redundancy_view", make=partial(zero_redundancy, wrap=DistributedDataParallel, views=True), copies=1
    ),
    # Gradients, too, are views of buckets: PyTorch at its fastest.
    theirs(
        name="zero_redundancy_views",
        make=partial(zero_redundancy, wrap=ddp_view(VARIATION_MB).wrap, views=True),
        copies=2,
    ),
)
"""All that take part, the one that shards nothing first."""
