"""This project's data-parallel wrappers, with AdamW on every rank."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

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
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel

Wrap = Callable[..., nn.Module]


@contextlib.contextmanager
def unavailable_here() -> Iterator[None]:
    """Convert the RuntimeError of a class that cannot work here, for example without NVLink, into `Unavailable`."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(str(error)) from None


def whole(
    model: nn.Module, contender: Declared, cell: Any, *, wrap: Wrap, **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build a wrapper without buckets."""
    return wrap(model), AdamW(model.parameters(), **hyperparameters)


def in_buckets(
    model: nn.Module, contender: Declared, cell: Any, *, wrap: Wrap, **hyperparameters: Any
) -> tuple[nn.Module, Optimizer]:
    """Build a wrapper with buckets of the contender's size, or of the common size."""
    wrapped = wrap(model, bucket_size_mb=contender.bucket_mb or COMMON_MB)
    return wrapped, AdamW(model.parameters(), **hyperparameters)


alone = partial(whole, wrap=lambda model: model)
naive = partial(whole, wrap=NaiveDataParallel)
flat = partial(whole, wrap=FlatDataParallel)
overlapped = partial(whole, wrap=OverlappedDataParallel)
bucketed = partial(in_buckets, wrap=BucketedDataParallel)
symmetric_memory = unavailable_here()(partial(in_buckets, wrap=SymmetricMemoryDataParallel))
