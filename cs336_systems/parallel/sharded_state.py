"""The state of sharded models and their optimizers as DTensors, which PyTorch's checkpoints can divide anew."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from cs336_systems.parallel.sharded_weight import ShardedWeight
from cs336_systems.parallel.units import Place


def keep_state_sharded(places: dict[Place, ShardedWeight]) -> None:
    """Let `state_dict` of modules give DTensors for shards, and `load_state_dict` take DTensors and whole tensors.

    The DTensors are sharded by rows over a mesh of all ranks, and share the memory of the shards.
    """
    for (owner, name), weight in places.items():
        owner.register_state_dict_post_hook(give_dtensor(name, weight))
        owner.register_load_state_dict_pre_hook(take_rows(name, weight))


def as_dtensor(rows: Tensor, weight: ShardedWeight) -> DTensor:
    """This rank's rows of a tensor that is as large as a weight, as its part of the whole."""
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, rows.device.type)
    stride = rows.new_empty(weight.shape, device="meta").stride()
    return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=weight.shape, stride=stride)


def give_dtensor(name: str, weight: ShardedWeight) -> Callable[..., None]:
    """A hook after `state_dict`."""

    def hook(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        state[prefix + name] = as_dtensor(weight.shard.detach(), weight)

    return hook


def take_rows(name: str, weight: ShardedWeight) -> Callable[..., None]:
    """A hook before `load_state_dict`."""

    def hook(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        value = state.get(prefix + name)
        if isinstance(value, DTensor):
            state[prefix + name] = value.to_local()
        elif isinstance(value, Tensor) and value.shape == weight.shape:
            state[prefix + name] = weight.own_rows(value)

    return hook
