"""The ways to train on several ranks that are compared: each wraps the same model in turn."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cs336_systems.experiments.data_parallel import (
    BUCKETS_MB,
    DDP_MB,
    DDP_VIEW_MB,
    FLOOR,
    PEER_MB,
    VARIATION_MB,
    DataParallelTraining,
)
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
)
from cs336_systems.parallel.peer_memory_data_parallel import PeerMemoryDataParallel
from cs336_systems.parallel.variations import (
    Bf16WireDataParallel,
    GroupedDataParallel,
    OptimizerOverlapDataParallel,
    PriorityDataParallel,
    SmallLastDataParallel,
)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to train on several ranks."""

    wrapper: str
    """Its name in the experiment's rows."""
    bucket_mb: int | None = None
    """Its bucket size, or None where it has no buckets."""
    wrap: Callable[[nn.Module], nn.Module]
    """Wraps a model. It may raise `Unavailable`."""
    copies: int = 0
    """How often it has all gradients in memory, besides the gradients themselves."""
    sent: float = 1.0
    """The share of the gradients' bytes that it sends."""
    tolerance: float = 2.0**-10
    """The error of a gradient that is allowed, relative to the mean over the ranks. What is wrong is off by far more;
    in another order of additions it is off by less."""
    foreign: bool = False
    """Whether it is a library's."""
    updates: bool = False
    """Whether the optimizer's step is part of its synchronization."""

    @property
    def details(self) -> dict[str, str]:
        """What tells its rows apart."""
        return {"wrapper": self.wrapper, "bucket_mb": "" if self.bucket_mb is None else str(self.bucket_mb)}


def contenders(cell: DataParallelTraining, optimizer: Optimizer) -> Iterator[Contender]:
    """All that take part, the floor first."""
    yield Contender(wrapper=FLOOR, wrap=lambda model: model)
    yield Contender(wrapper="naive", wrap=NaiveDataParallel)
    yield Contender(wrapper="flat", wrap=FlatDataParallel, copies=1)
    yield Contender(wrapper="overlapped", wrap=OverlappedDataParallel)
    for size in BUCKETS_MB:
        yield bucketed("bucketed", BucketedDataParallel, size)
    for size in PEER_MB:
        # Its own buckets, and those that peers fill.
        yield bucketed("peer_memory", PeerMemoryDataParallel, size, copies=2)
    yield Contender(wrapper="ddp", bucket_mb=DDP_MB, wrap=DistributedDataParallel, copies=1, foreign=True)
    for size in DDP_VIEW_MB:
        yield ddp_view(size)
    if cell.tried:
        yield bucketed("grouped", GroupedDataParallel, copies=0)
        yield bucketed("small_last", SmallLastDataParallel)
        yield bucketed("priority", PriorityDataParallel)
        # Its buckets, and what is sent, which is rounded on each rank, and when it is added and divided.
        yield bucketed("bf16_wire", Bf16WireDataParallel, copies=2, sent=0.5, tolerance=2.0**-6)
        yield bucketed("optimizer_overlap", partial(OptimizerOverlapDataParallel, optimizer=optimizer), updates=True)


def bucketed(
    wrapper: str, kind: Callable[..., nn.Module], size: int = VARIATION_MB, *, copies: int = 1, **traits: Any
) -> Contender:
    """A contender with buckets of a size in MB; a class that cannot work here raises a RuntimeError that says why."""

    def wrap(model: nn.Module) -> nn.Module:
        with unavailable_here():
            return kind(model, bucket_size_mb=size)

    return Contender(wrapper=wrapper, bucket_mb=size, wrap=wrap, copies=copies, **traits)


@contextlib.contextmanager
def unavailable_here() -> Iterator[None]:
    """Turn the RuntimeError of a class that cannot work here, such as without symmetric memory, into `Unavailable`."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(str(error)) from None


def ddp_view(size: int) -> Contender:
    """PyTorch's, whose gradients are views of its buckets.

    Before each step it would broadcast the model's buffers, which never change: without that it is at its best.
    """

    def wrap(model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            # Its successor is not yet there in PyTorch 2.11.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                model, bucket_cap_mb=size, gradient_as_bucket_view=True, broadcast_buffers=False
            )

    return Contender(wrapper="ddp_view", bucket_mb=size, wrap=wrap, copies=1, foreign=True)
