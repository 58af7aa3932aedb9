"""Replication of rank 0's model on every rank."""

from collections.abc import Iterable
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cs336_systems.parallel.buckets import MB, group_tensors, views_like

BROADCAST_BYTES = 100 * MB
"""Maximum size of one broadcast of small tensors, an upper bound of the memory that the copy needs."""


def replicate(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Broadcast rank 0's parameters and buffers to all ranks of a group; None: all.

    All ranks raise a ValueError if a process is not in the group, a layer has sparse gradients, a tensor is on the meta
    device, or their models differ in more than values: a name, shape, dtype, layout or frozen parameter.
    """
    check_member(group)
    check_dense(module)
    named = [*module.named_parameters(), *module.named_buffers()]
    check_same_on_all_ranks([describe(name, tensor) for name, tensor in named], group)
    check_in_memory(named)
    tensors = [own_elements(tensor.detach()) for _, tensor in named]
    for together in group_tensors(tensors, BROADCAST_BYTES):
        members = [tensors[i] for i in together]
        flat = members[0].new_empty(sum(tensor.numel() for tensor in members))
        views = views_like(flat, members)
        torch._foreach_copy_(views, members)
        dist.broadcast(flat.view(torch.uint8), group=group, group_src=0)  # no backend sends 16-bit integers
        torch._foreach_copy_(members, views)


def own_elements(tensor: Tensor) -> Tensor:
    """The elements of a tensor that lie apart in memory, as those of an expanded buffer do not."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def describe(name: str, tensor: Tensor) -> str:
    """Describe the properties of a tensor that must agree on all ranks."""
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    frozen = "" if tensor.requires_grad else ", without gradient"
    meta = " on the meta device" if tensor.is_meta else ""
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{strides}{meta}{frozen}"


def check_member(group: dist.ProcessGroup | None) -> None:
    """Raise a ValueError if this process is not a member of a process group."""
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"process_group does not contain rank {dist.get_rank()}; allowed: None, or a group with this process"
        )


def check_dense(module: nn.Module) -> None:
    """Raise a ValueError that names a layer with sparse gradients, if there is one."""
    for name, part in module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and part.weight.requires_grad:
            raise ValueError(f"{name or 'the module'} has sparse=True, and so sparse gradients; allowed: sparse=False")


def check_in_memory(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a ValueError that names a tensor that is sharded or on the meta device, if there is one."""
    for name, tensor in named:
        if isinstance(tensor, DTensor):
            raise ValueError(f"{name} is a DTensor, already sharded; allowed: unsharded parameters")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device; allowed: a module after to_empty(), with its weights")


def check_same_on_all_ranks(mine: list[str], group: dist.ProcessGroup | None = None) -> None:
    """Raise a ValueError with the first difference if the descriptions of a rank's tensors are not rank 0's."""
    everyone: list[list[str]] = [[]] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        for ours, other in zip_longest(everyone[0], theirs, fillvalue="nothing more"):
            if ours != other:
                raise ValueError(
                    f"the ranks' models differ: rank 0 has {ours}; rank {rank} has {other}; allowed: the same "
                    "parameters and buffers on all ranks"
                )
