"""Builders of PyTorch's wrappers and its sharded optimizer."""

import warnings
import weakref
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from cs336_systems.benchmarks.comparison.builders.ours import COMPUTE_DTYPE, Built, Wrap, blocks_of
from cs336_systems.experiments.contender import COMMON_MB, Declared
from cs336_systems.limits import AHEAD


def ddp(model: nn.Module, contender: Declared, cell: Any, **hyperparameters: Any) -> Built:
    """Build DistributedDataParallel with default options."""
    return DistributedDataParallel(model), AdamW(model.parameters(), **hyperparameters)


def ddp_view(model: nn.Module, contender: Declared, cell: Any, **hyperparameters: Any) -> Built:
    """Build tuned DistributedDataParallel, with buckets of the contender's size."""
    return view_buckets(model, contender.bucket_mb), AdamW(model.parameters(), **hyperparameters)


def view_buckets(model: nn.Module, mebibytes: int | None) -> nn.Module:
    """Build DistributedDataParallel at its best: a static graph, and gradients that are views of its buckets.

    It does not broadcast buffers before each step, since they never change.
    """
    with warnings.catch_warnings():
        # Its successor does not exist in PyTorch 2.11.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(
            model,
            bucket_cap_mb=mebibytes,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
            static_graph=True,
        )


def zero(model: nn.Module, contender: Declared, cell: Any, *, wrap: Wrap, views: bool, **hyperparameters: Any) -> Built:
    """Build ZeroRedundancyOptimizer; `views` makes parameters views of the broadcast buckets."""
    wrapped = wrap(model)
    return wrapped, ZeroRedundancyOptimizer(
        model.parameters(), AdamW, parameters_as_bucket_view=views, **hyperparameters
    )


zero_redundancy = partial(zero, wrap=DistributedDataParallel, views=False)
zero_redundancy_view = partial(zero, wrap=DistributedDataParallel, views=True)
zero_redundancy_views = partial(zero, wrap=partial(view_buckets, mebibytes=COMMON_MB), views=True)


def shard(model: nn.Module, contender: Declared, cell: Any, *, tuned: bool, **hyperparameters: Any) -> Built:
    """Build fully_shard per block; the rest of the model is another unit, kept gathered for the backward pass.

    `tuned` prefetches as many blocks as this project's wrapper, and allocates buffers from the memory of its own
    process group, which keeps them for as long as the group exists.
    """
    device = next(model.parameters()).device.type
    if tuned:
        group = dist.new_group()
        weakref.finalize(model, dist.destroy_process_group, group).atexit = False
        mesh = DeviceMesh.from_group(group, device)
    else:
        mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE[cell.precision])
    blocks: list[Any] = [
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True) for block in blocks_of(model)
    ]
    root = fully_shard(model, mesh=mesh, mp_policy=policy)
    if tuned:
        for number, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + AHEAD])
            block.set_modules_to_backward_prefetch(blocks[max(0, number - AHEAD) : number][::-1])
        for unit in (*blocks, root):
            unit.set_allocate_memory_from_process_group_for_comm(True)
    return model, AdamW(model.parameters(), **hyperparameters)


by_block = partial(shard, tuned=False)
by_block_tuned = partial(shard, tuned=True)
