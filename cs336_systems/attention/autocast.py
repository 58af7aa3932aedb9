"""Attention under autocast: inputs are cast like in SDPA, and nothing is cast afterwards."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_inputs(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Cast the inputs to autocast's dtype if it is on for their device, except float64 and integers.

    Raises:
        TypeError: one of them is not a tensor.
    """
    for x in inputs:
        if not isinstance(x, Tensor):
            raise TypeError(f"The inputs must be tensors, got {type(x).__name__}.")
    device = inputs[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return inputs
    dtype = torch.get_autocast_dtype(device)
    kept = (dtype, torch.float64)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype not in kept else x for x in inputs)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the tensor's device, so that matmuls run in the dtype of their operands."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
