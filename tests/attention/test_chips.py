"""Every kernel compiles for each generation of GPUs, without one: it fits into the chip's memory and hardly spills.

The tiles are those that the dispatch chooses there. Whether they are fast, only such a GPU could say.
"""

import itertools

import pytest
import torch

pytest.importorskip("triton")
from cs336_systems.attention import triton_launch
from cs336_systems.attention.chip import Chip, triton_obstacle
from cs336_systems.attention.options import Options
from cs336_systems.training import (
    triton_adamw,
    triton_cross_entropy,
    triton_fp8,
    triton_fp8_swiglu,
    triton_rms_norm,
    triton_rope,
    triton_swiglu,
)
from tests.support.fake_gpu import SHARED_MEMORY, fake_gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the driver of a GPU is in use")

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTHS = (16, 64, 128, 256)
SHAPES = {"few queries": (1, 2, 512), "many": (4, 16, 1024), "long": (2, 16, 8192)}
"""Batch, heads and queries: each row of the tables is reached by one of them."""
MAX_STACK = {BF16: 400, FP16: 400, FP32: 900}
"""Bytes per thread that spilled registers may take; twice that in fp32 at d > 128. (ptxas, when it gives up: 4000.)"""
CHIPS = [
    *((chip, *case) for chip in (80, 90, 100) for case in itertools.product((BF16, FP32), WIDTHS)),
    # The same code for the same tensor cores: 16 has the tiles of 64, FP16 those of BF16, and Ada those of Ampere.
    *((chip, *case) for chip in (86, 120) for case in itertools.product((BF16, FP32), WIDTHS[1:])),
    *((chip, FP16, 128) for chip in (80, 86, 90, 100, 120)),
    (89, BF16, 128),
]


def empty(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def chip(capability: int) -> Chip:
    return Chip(capability=divmod(capability, 10), shared_memory=SHARED_MEMORY[capability] * 1024, sms=100)


COMMON = (86, BF16, 128)
"""The most common head dimension on the most common GPUs, which each `make test` compiles."""
GATE = {(80, BF16, 64), (90, BF16, 256), (100, BF16, 128), (120, FP32, 128)}
"""Cases that the gate also compiles, one for each generation. `make test-all` compiles all."""


def marked(case):
    """A case with the marks that say who compiles it."""
    marks = () if case == COMMON else (pytest.mark.slow,) if case in GATE else (pytest.mark.slow, pytest.mark.chips)
    return pytest.param(*case, marks=marks)


@pytest.mark.parametrize(("capability", "dtype", "d"), [marked(case) for case in CHIPS])
def test_attention_fits(capability, dtype, d):
    with fake_gpu(capability) as gpu:
        for shape in SHAPES.values():
            forward, backward = triton_launch.tiles_for(chip(capability), dtype, torch.Size((*shape, d)))
            q, k, v, do = (empty(*shape, d, dtype=dtype) for _ in range(4))
            o, lse = triton_launch.attention_forward(q, k, v, Options(True), tiles=forward)
            triton_launch.attention_backward(do, q, k, v, o, lse, None, Options(True), tiles=backward)
    assert {kernel.name for kernel in gpu.compiled} >= {"forward_kernel", "backward_kernel"}
    limit = MAX_STACK[dtype] * (2 if dtype is FP32 and d > 128 else 1)
    assert not [kernel for kernel in gpu.compiled if kernel.stack > limit]


def tiles(capability, dtype, d):
    return [triton_launch.tiles_for(chip(capability), dtype, torch.Size((*shape, d))) for shape in SHAPES.values()]


def test_what_is_compiled_once_has_the_same_tiles():
    for capability, d in itertools.product((80, 86, 89, 90, 100, 120), WIDTHS):
        assert tiles(capability, FP16, d) == tiles(capability, BF16, d), (capability, d)
    for dtype in (BF16, FP32):
        assert all(tiles(89, dtype, d) == tiles(86, dtype, d) for d in WIDTHS)
        assert all(tiles(capability, dtype, 16) == tiles(capability, dtype, 64) for capability in (86, 120))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "dtype", "d"), [case for case in CHIPS if case in GATE | {COMMON} and case[2] < 256]
)
def test_attention_with_options_fits(capability, dtype, d):
    """A window, softcap and sinks, for a batch and for packed documents."""
    sinks, ends = empty(16), empty(3, dtype=torch.int32)
    with fake_gpu(capability) as gpu:
        for shape, packed in (((2, 16, 8192, d), ()), ((1, 16, 16384, d), (ends, ends))):
            forward, backward = triton_launch.tiles_for(chip(capability), dtype, torch.Size(shape))
            q, k, v, do = (empty(*shape, dtype=dtype) for _ in range(4))
            options = Options(True, None, 1023, -1, 30.0, False, sinks, *packed)
            o, lse = triton_launch.attention_forward(q, k, v, options, tiles=forward)
            triton_launch.attention_backward(do, q, k, v, o, lse, None, options, tiles=backward)
    assert {kernel.name for kernel in gpu.compiled} >= {"forward_kernel", "backward_kernel"}
    assert not [kernel for kernel in gpu.compiled if kernel.stack > MAX_STACK[dtype]]


def test_a_t4_is_not_for_triton():
    assert "below 8.0" in triton_obstacle(chip(75))
    with pytest.raises(NotImplementedError, match=r"do not run on this GPU: .* below 8\.0"):
        triton_launch.tiles_for(chip(75), FP16, torch.Size((1, 2, 512, 64)))


def launch_norms(dtype: torch.dtype) -> None:
    for d in (768, 8192):
        x, w = empty(64, d, dtype=dtype), empty(d, dtype=dtype)
        triton_rms_norm.norm_forward(x, x, w, 1e-5, dtype)
        triton_rms_norm.norm_backward(x, x, x, w, empty(64), True)


def launch_rotations(dtype: torch.dtype) -> None:
    for d in (64, 128):
        tables = empty(128, d // 2), empty(128, d // 2)
        triton_rope.rotate_forward(empty(2, 64, 12 * d, dtype=dtype), *tables, 4, 4, True)
        triton_rope.rotate_backward(*(empty(2, 4, 64, d, dtype=dtype) for _ in range(3)), *tables, True)


def launch_activations(dtype: torch.dtype) -> None:
    triton_swiglu.swiglu_forward(empty(64, 2 * 2048, dtype=dtype))
    triton_swiglu.swiglu_backward(empty(64, 2 * 2048, dtype=dtype), empty(64, 2048, dtype=dtype), True)


def launch_losses(dtype: torch.dtype) -> None:
    targets, factor, losses = empty(64, dtype=torch.int64), empty(1), empty(64)
    for vocabulary in (1000, 151936):
        triton_cross_entropy.cross_entropy_in_place(
            empty(64, vocabulary, dtype=dtype), targets, factor, losses, -100, True
        )
    triton_cross_entropy.scale_in_place(empty(64, 64, dtype=dtype), factor)


def launch_updates(dtype: torch.dtype) -> None:
    wide, remainder = empty(4096), empty(4096, dtype=torch.int16) if dtype is BF16 else None
    row = triton_adamw.Row(empty(4096, dtype=dtype), remainder, wide, wide, empty(), 0)
    table = triton_adamw.UpdateTable([row], empty(1, 5, dtype=torch.float64))
    for gradient in (wide, row.weight):
        table.update([gradient], empty())


def launch_roundings(dtype: torch.dtype) -> None:
    for amax in (triton_fp8.CURRENT, triton_fp8.Amax(empty(), empty())):
        triton_fp8.round_matrix(empty(64, 128, dtype=dtype), torch.float8_e4m3fn, True, amax)
        gate_up, d_hidden = empty(64, 512, dtype=dtype), empty(64, 256, dtype=dtype)
        triton_fp8_swiglu.swiglu_fp8(gate_up, amax)
        triton_fp8_swiglu.swiglu_fp8_backward(gate_up, d_hidden, empty(), torch.float8_e5m2, amax)


ALL = (launch_norms, launch_rotations, launch_activations)
TRAINING = [
    *(
        (chip, launch, BF16)
        for chip in (75, 80, 86, 90, 100, 120)  # Ada's code is that of 86
        for launch in (*ALL, launch_losses, launch_updates)
    ),
    *((chip, launch_roundings, BF16) for chip in (89, 90, 100, 120)),
    *((75, launch, FP16) for launch in ALL),
    *((chip, launch, FP32) for chip in (75, 90) for launch in (*ALL, launch_losses, launch_updates)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "launch", "dtype"),
    [pytest.param(*case, marks=() if case[0] == 75 and case[2] is BF16 else pytest.mark.chips) for case in TRAINING],
)
def test_training_fits(capability, launch, dtype):
    with fake_gpu(capability) as gpu:
        launch(dtype)
    assert gpu.compiled
    assert not [kernel for kernel in gpu.compiled if kernel.stack]
