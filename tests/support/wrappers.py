"""This project's data-parallel wrappers by name, with optimizers of all kinds, and whether ranks agree."""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    DataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
)
from cs336_systems.parallel.sharded_gradients import ShardedGradientsDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from cs336_systems.parallel.symmetric_memory_optimizer import SymmetricMemoryShardedOptimizer

WRAPPERS: dict[str, Callable[[nn.Module], DataParallel]] = {
    "naive": NaiveDataParallel,
    "flat": FlatDataParallel,
    "overlapped": OverlappedDataParallel,
    "bucketed, 0.4 kB": partial(BucketedDataParallel, bucket_size_mb=0.0004),
    "bucketed, 1 MB": partial(BucketedDataParallel, bucket_size_mb=1),
    "symmetric memory, 40 B": partial(SymmetricMemoryDataParallel, bucket_size_mb=0.00004),
    "symmetric memory": SymmetricMemoryDataParallel,
}


def by(wrap):
    """Wrap a module, and make the optimizer of its parameters."""

    def build(module, make):
        wrapped = wrap(module)
        return wrapped, make(wrapped.parameters())

    return build


def sharded_by(kind, sharded_gradients=False, **options):
    """Wrap a module, and shard its optimizer, which `make` is a partial function of; its gradients, too, if wanted."""

    def build(module, make):
        optimizer_of = partial(kind, optimizer_cls=make.func, **options, **make.keywords)
        if sharded_gradients:
            optimizer = optimizer_of(module.parameters())
            return ShardedGradientsDataParallel(module, optimizer), optimizer
        wrapped = BucketedDataParallel(module, 1, process_group=options.get("process_group"))
        return wrapped, optimizer_of(wrapped.parameters())

    return build


def with_sharded_gradients(module):
    """A module whose gradients are sharded, in small buckets."""
    build = sharded_by(ShardedOptimizer, sharded_gradients=True, bucket_size_mb=0.0001)
    return build(module, partial(torch.optim.SGD))[0]


EVERY_WRAPPER = WRAPPERS | {"sharded gradients": with_sharded_gradients}
SHARDED_OPTIMIZERS = (ShardedOptimizer, SymmetricMemoryShardedOptimizer)


def same_on_all_ranks(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> bool:
    """Whether all ranks of `group` (None: all) hold the same bits in tensors of a common dtype."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    digests = [""] * dist.get_world_size(group)
    mine = hashlib.sha256(flat.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
    dist.all_gather_object(digests, mine, group=group)
    return len(set(digests)) == 1
