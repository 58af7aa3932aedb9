"""Residual addition and RMSNorm in one pass, against float64: plain, interpreted (test_interpreted.py) and on a GPU."""

import pytest
import torch

from cs336_systems.training.rms_norm import add_rms_norm
from tests.training.interpreted import assert_close, rounding, uses_kernel

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = [
    (1, 64),  # one token
    (2, 5, 96),  # rows and width that no tile divides
    (67, 48),
    (7, 1, 1025),
]


def make_inputs(shape, dtype, device, has_delta=True):
    generator = torch.Generator().manual_seed(0)
    x, delta, d_total, d_normed = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(4))
    weight = torch.rand(shape[-1], generator=generator).add(0.5).to(device, dtype)
    leaves = [x.requires_grad_(), delta.requires_grad_() if has_delta else None, weight.requires_grad_()]
    return leaves, d_total, d_normed


def reference(total, weight, d_total, d_normed, eps=1e-5):
    """The same in float64, from the rounded sum on: its rounding is part of the definition."""
    total, w = total.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    normed = total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * w
    dx, dw = torch.autograd.grad((total * 1, normed), (total, w), (d_total.double(), d_normed.double()))
    return {"normed": normed, "dx": dx, "d_weight": dw}


@pytest.mark.parametrize("has_delta", [True, False])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(shape, dtype, has_delta, device):
    (x, delta, weight), d_total, d_normed = make_inputs(shape, dtype, device, has_delta)
    total, normed = add_rms_norm(x, delta, weight)
    assert uses_kernel(normed, "AddRMSNorm")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(total, x + delta if has_delta else x, rtol=eps, atol=0)
    want = reference(total, weight, d_total, d_normed)
    torch.autograd.backward((total, normed), (d_total, d_normed))
    limit = rounding(dtype, device)
    assert_close(normed, want["normed"], limit)
    assert_close(x.grad, want["dx"], limit)
    assert_close(weight.grad, want["d_weight"], limit)
    if has_delta:
        assert torch.equal(delta.grad, x.grad)


def test_autocast_keeps_the_stream_wide_and_normalizes_to_bf16(device):
    (x, _, weight), d_total, d_normed = make_inputs((6, 40), FP32, device)
    delta = torch.randn(6, 40).to(device, BF16).requires_grad_()
    want = reference(x + delta, weight, d_total, d_normed.bfloat16())
    with torch.autocast(device, dtype=BF16):
        total, normed = add_rms_norm(x, delta, weight)
    assert (total.dtype, normed.dtype) == (FP32, BF16)
    torch.autograd.backward((total, normed), (d_total, d_normed.bfloat16()))
    assert_close(normed, want["normed"], rounding(BF16, device))
    assert_close(x.grad, want["dx"], rounding(FP32, device))
    assert delta.grad.dtype == BF16


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 2560), (3, 8192), (1000, 768), (5, 20000)])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_large_rows(shape, dtype):
    test_matches_float64(shape, dtype, True, "cuda")


@pytest.mark.gpu
def test_gradients_are_the_same_bits_every_time():
    (x, delta, weight), d_total, d_normed = make_inputs((4096, 640), BF16, "cuda")
    first, second = (
        torch.autograd.grad(add_rms_norm(x, delta, weight), (x, weight), (d_total, d_normed)) for _ in range(2)
    )
    assert all(map(torch.equal, first, second))


def test_shapes_that_do_not_match_are_refused():
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=r"x and delta must share a shape, got \[2, 8\] and \[1, 8\]"):
        add_rms_norm(x, torch.ones(1, 8), torch.ones(8))
    with pytest.raises(ValueError, match=r"weight must be \[d_model\], got \[1\]"):
        add_rms_norm(x, None, torch.ones(1))
    with pytest.raises(ValueError, match=r"^x is of dtype torch\.int64; allowed: floating-point dtypes$"):
        add_rms_norm(x.long(), None, torch.ones(8))
