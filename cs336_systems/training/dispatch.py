"""Choice between a pass's Triton kernels and its plain PyTorch formula."""

import torch
from torch import Tensor

from cs336_systems.attention.chip import HAS_TRITON as HAS_TRITON

INTERPRETED = False  # without Triton, as on macOS and Windows
if HAS_TRITON:
    from cs336_systems.attention.launcher import INTERPRETED

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def runs_kernels(x: Tensor) -> bool:
    """Whether kernels compute on this tensor: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1).

    Under torch.compile they do not: the compiler fuses the plain formula with what surrounds it.
    """
    supported = INTERPRETED or (HAS_TRITON and x.is_cuda)
    return supported and x.dtype in KERNEL_DTYPES and x.numel() > 0 and not torch.compiler.is_compiling()


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype that plain formulas compute in: fp32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)
