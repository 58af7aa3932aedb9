"""Results of kernels on a GPU and in Triton's interpreter, against those in float64."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def uses_kernel(result, name: str) -> bool:
    """Whether a result of this device was computed by the kernels of an autograd function, as it must be."""
    expected = f"{name}Backward" if INTERPRETED or result.is_cuda else None
    return expected is None or result.grad_fn.name() == expected


def rounding(dtype, device: str) -> float:
    """The error allowed of a result, relative to its norm in float64.

    Kernels compute in fp32 and round a 16-bit result once: half an eps; the interpreter truncates bf16. Plain PyTorch
    rounds sums of rounded gradients. An fp32 result has the rounding errors of a few operations.
    """
    eps = torch.finfo(dtype).eps
    if dtype == torch.float32:
        return 4 * eps
    rounds_once = device == "cuda" or (INTERPRETED and dtype == torch.float16)
    return 0.55 * eps if rounds_once else 1.2 * eps


def assert_close(got, want, limit: float) -> None:
    """Check a result by its error relative to the norm of the result in float64."""
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error <= limit, f"{error:.2e} > {limit:.2e}"


def need_gpu_memory(gigabytes: int) -> None:
    """Skip a test on a GPU that has less free memory."""
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes} GB of GPU memory, {free:.0f} are free")
