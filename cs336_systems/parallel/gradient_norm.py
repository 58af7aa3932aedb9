"""The norm of all gradients together, sharded or not."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from cs336_systems.parallel.collectives import all_gather_single
from cs336_systems.parallel.distributed_parameters import own_part


def gradient_norm(
    parameters: Iterable[Tensor], norm_type: float = 2.0, *, gradients: Mapping[Any, Tensor] | None = None
) -> Tensor:
    """The norm of all gradients together, without waiting for the device.

    Args:
        parameters: one or several; those without a gradient are skipped, and one that is listed twice counts once. For
            DTensors, the norm covers the shards of all ranks, and all ranks call this.
        norm_type: above 0, `inf` included; 2: the Euclidean norm.
        gradients: used instead of `.grad`.

    Returns:
        one number on the first gradient's device, fp32 unless a gradient is float64; NaN if a gradient has one.

    Raises:
        ValueError: norm_type is not positive, a gradient is sparse or a partial sum, or no parameter has a gradient.
    """
    if not norm_type > 0:
        raise ValueError(f"norm_type is {norm_type}; allowed: numbers above 0, and inf")
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters  # not its rows
    given = gradients or {}
    all_gradients = [given.get(p, p.grad) for p in dict.fromkeys(parameters)]
    present = [gradient for gradient in all_gradients if gradient is not None]
    if not present:
        raise ValueError("no parameter has a gradient; clip after the backward pass")
    if any(gradient.layout is not torch.strided for gradient in present):
        raise ValueError("a gradient is sparse; allowed: dense gradients")
    parts: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    for gradient in present:
        parts.setdefault(_groups_of(gradient), []).append(own_part(gradient))
    norms = [_norm_over_ranks(_norm_of(local, norm_type), groups, norm_type) for groups, local in parts.items()]
    return norms[0] if len(norms) == 1 else _norm_of([norm.to(norms[0].device) for norm in norms], norm_type)


def _groups_of(gradient: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """The process groups over which a gradient is sharded; none for a plain tensor."""
    if not isinstance(gradient, DTensor):
        return ()
    if any(place.is_partial() for place in gradient.placements):
        raise ValueError("a gradient is a DTensor of partial sums; allowed: sharded or replicated DTensors")
    groups = zip(gradient.placements, gradient.device_mesh.get_all_groups(), strict=True)
    return tuple(group for place, group in groups if isinstance(place, Shard))


def _norm_of(tensors: list[Tensor], norm_type: float) -> Tensor:
    """The norm of tensors together, at least in fp32, on the first one's device."""
    dtype = reduce(torch.promote_types, {x.dtype for x in tensors}, torch.float32)
    device = tensors[0].device
    filled = [x for x in tensors if x.numel()]  # the largest of no numbers would be an error
    norms = torch._foreach_norm(filled, norm_type, dtype) if filled else (torch.zeros((), dtype=dtype, device=device),)
    return torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)


def _norm_over_ranks(norm: Tensor, groups: Iterable[dist.ProcessGroup], norm_type: float) -> Tensor:
    for group in groups:
        of_ranks = norm.new_empty(group.size())
        all_gather_single(of_ranks, norm[None], group=group)  # a reduction to the maximum would lose a NaN
        norm = torch.linalg.vector_norm(of_ranks, norm_type)
    return norm
