"""Every kernel compiles for each generation of GPUs, without one: it fits into the chip's memory and hardly spills."""

import itertools

import pytest
import torch

from cs336_systems.attention import triton_launch
from cs336_systems.attention.chip import Chip
from tests.support.fake_gpu import SHARED_MEMORY, fake_gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the driver of a GPU is in use")

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTHS = (16, 64, 80, 128, 256)
FEW, MANY, LONG = (1, 2, 500), (4, 16, 1024), (2, 16, 8192)
"""Batch, heads and queries: each row of the tables is reached by one of them."""
MAX_STACK = 136
"""Bytes per thread that registers may spill; the kernels of fp32 at d > 128 spill up to MAX_STACK_WIDE."""
MAX_STACK_WIDE = 1200


def chip(capability: int) -> Chip:
    return Chip(capability=divmod(capability, 10), shared_memory=SHARED_MEMORY[capability] * 1024, sms=100)


def launch_attention(of: Chip, dtype: torch.dtype, shape: tuple[int, ...], causal: bool) -> None:
    forward, backward = triton_launch.tiles_for(of, dtype, torch.Size(shape))
    q, k, v, do = (torch.empty(shape, dtype=dtype, device="meta") for _ in range(4))
    o, lse = triton_launch.attention_forward(q, k, v, causal, tiles=forward)
    triton_launch.attention_backward(do, q, k, v, o, lse, causal, tiles=backward)


CASES = [
    pytest.param(
        capability, dtype, width, marks=() if (capability, width) in ((86, 128), (80, 64)) else pytest.mark.slow
    )
    for capability in (80, 86, 89, 90, 100, 120)
    for dtype, width in itertools.product((BF16, FP32), WIDTHS)
] + [pytest.param(capability, FP16, 128, marks=pytest.mark.slow) for capability in (80, 86, 89, 90, 100, 120)]


@pytest.mark.parametrize(("capability", "dtype", "width"), CASES)
def test_attention_fits(capability, dtype, width):
    with fake_gpu(capability) as gpu:
        for shape in (FEW, MANY, LONG):
            launch_attention(chip(capability), dtype, (*shape, width), True)
    assert gpu.compiled
    limit = MAX_STACK_WIDE if dtype is FP32 and width > 128 else MAX_STACK
    assert not [kernel for kernel in gpu.compiled if kernel.stack > limit]
