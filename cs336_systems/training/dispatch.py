"""Choice between a pass's Triton kernels and its plain PyTorch formula."""

import torch
from torch import Tensor, nn

from cs336_systems.attention.chip import HAS_TRITON as HAS_TRITON

INTERPRETED = False  # without Triton, as on macOS and Windows
if HAS_TRITON:
    from cs336_systems.attention.launcher import INTERPRETED

PLAIN = (nn.Parameter, Tensor)
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def runs_kernels(x: Tensor) -> bool:
    """Whether kernels compute on this tensor: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1).

    Under torch.compile they do not: the compiler fuses the plain formula with the surrounding operations. They also do
    not if operators are needed.
    """
    supported = (INTERPRETED or (HAS_TRITON and x.is_cuda)) and x.dtype in KERNEL_DTYPES and x.numel() > 0
    return supported and not torch.compiler.is_compiling() and not needs_operators(x)


def needs_operators(*tensors: Tensor) -> bool:
    """Whether only PyTorch's operators are correct: inside a transform of torch.func, or on a tensor subclass."""
    for x in tensors:  # three times as fast as any(...)
        if type(x) not in PLAIN:
            return True
    return torch._C._are_functorch_transforms_active()


def check_dtype(name: str, x: Tensor) -> None:
    """Raise a ValueError if a tensor is not floating-point: a formula's results would be truncated."""
    if not x.is_floating_point():
        raise ValueError(f"{name} is of dtype {x.dtype}; allowed: floating-point dtypes")


def check_whole(function: str, x: Tensor, *weights: Tensor) -> None:
    """Raise a ValueError if a weight is a DTensor although the input is not."""
    for weight in weights:
        if type(weight) not in PLAIN and hasattr(weight, "placements") and not hasattr(x, "placements"):
            raise ValueError(
                f"{function} got a weight that is a DTensor, sharded over ranks; allowed: unsharded weights, as in "
                "the forward pass of a module whose class is in FullyShardedDataParallel's `together`, or that was "
                "given to fully_shard; linear_cross_entropy also accepts the layer"
            )


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which plain formulas compute: fp32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)
