"""The same model on every rank."""

from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.parallel.buckets import MB, group_tensors, views_like

BROADCAST_BYTES = 100 * MB
"""Small tensors are broadcast together, up to this size: more memory than that is not spent on the copy."""


def replicate(module: nn.Module) -> None:
    """Give each rank the parameters and buffers of rank 0.

    Raises:
        ValueError: the ranks' models differ in a name, shape, dtype or layout, or in what is frozen; on all ranks.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    check_same_on_all_ranks([describe(name, tensor) for name, tensor in named])
    tensors = [tensor.detach() for _, tensor in named]
    for group in group_tensors(tensors, BROADCAST_BYTES):
        members = [tensors[i] for i in group]
        flat = members[0].new_empty(sum(tensor.numel() for tensor in members))
        views = views_like(flat, members)
        torch._foreach_copy_(views, members)
        dist.broadcast(flat, src=0)
        torch._foreach_copy_(members, views)


def describe(name: str, tensor: Tensor) -> str:
    """What must be the same on all ranks."""
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    frozen = "" if tensor.requires_grad else ", without gradient"
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{strides}{frozen}"


def check_same_on_all_ranks(mine: list[str]) -> None:
    """Compare the descriptions of all ranks' tensors with those of rank 0.

    Raises:
        ValueError: some rank's differ; it names the first difference.
    """
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        for ours, other in zip_longest(everyone[0], theirs, fillvalue="nothing more"):
            if ours != other:
                raise ValueError(
                    f"the ranks' models differ: rank 0 has {ours}; rank {rank} has {other}; allowed: the same "
                    "parameters and buffers on all ranks"
                )
