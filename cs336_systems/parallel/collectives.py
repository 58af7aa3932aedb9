"""Single-tensor collectives under their names in PyTorch 2.13; earlier versions have other names."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduce_scatter_single(output: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's reduce-scatter, also of complex numbers, which NCCL has only for the other collectives."""
    if values.is_complex():
        output, values = torch.view_as_real(output), torch.view_as_real(values)
    return _reduce_scatter_single(output, values, *args, **kwargs)


def averaging(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> dist.ReduceOp.RedOpType:
    """Return the operation that averages tensors over the ranks of `group`, and prepare the tensors for it.

    NCCL divides before it adds. Gloo adds first, and a sum of fp16 numbers can overflow although their mean does not.
    So if any tensor is fp16, all tensors are divided here, since a coalesced call has only one operation.
    """
    if all(tensor.dtype != torch.float16 for tensor in tensors) or dist.get_backend(group) == "nccl":
        return dist.ReduceOp.AVG
    for tensor in tensors:
        tensor.div_(dist.get_world_size(group))
    return dist.ReduceOp.SUM


def absent_everywhere(absent: list[int], ones: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    """Find which of the gradients that this rank lacks, by index, are absent on every rank. All ranks call it.

    The host waits for the answer only if a gradient is absent. `ones` has a uint8 one per gradient and stays unchanged.
    """
    present = ones
    if absent:
        present = ones.clone()
        present[absent] = 0
    dist.all_reduce(present, dist.ReduceOp.MAX, group=group)
    if not absent:
        return []
    return [index for index, anywhere in zip(absent, present[absent].tolist(), strict=True) if not anywhere]
