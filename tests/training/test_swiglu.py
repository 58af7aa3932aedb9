"""SwiGLU's activation in one pass, against float64: plain, interpreted (test_interpreted.py) and on a GPU."""

import pytest
import torch
from torch.nn.functional import silu

from cs336_systems.training.swiglu import swiglu, swiglu_linear
from tests.training.interpreted import assert_close, rounding, uses_kernel

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = [(1, 2), (3, 5, 96), (67, 2 * 257), (2, 2 * 1100)]  # one token, widths that no tile divides


def make_inputs(shape, dtype, device, d_out=24):
    generator = torch.Generator().manual_seed(0)
    d_ff = shape[-1] // 2
    shapes = (shape, (d_out, d_ff), (*shape[:-1], d_ff), (*shape[:-1], d_out))
    gate_up, weight, d_hidden, d_output = (torch.randn(s, generator=generator).to(device, dtype) for s in shapes)
    return (2 * gate_up).requires_grad_(), weight.requires_grad_(), d_hidden, d_output


def reference(gate_up, d_hidden):
    leaf = gate_up.detach().double().requires_grad_()
    gate, up = leaf.chunk(2, -1)
    hidden = silu(gate) * up
    return hidden, torch.autograd.grad(hidden, leaf, d_hidden.double())[0]


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(shape, dtype, device):
    gate_up, _, d_hidden, _ = make_inputs(shape, dtype, device)
    hidden = swiglu(gate_up)
    assert uses_kernel(hidden, "SwiGLUActivation")
    hidden.backward(d_hidden)
    want, d_gate_up = reference(gate_up, d_hidden)
    assert_close(hidden, want, rounding(dtype, device))
    assert_close(gate_up.grad, d_gate_up, rounding(dtype, device))


def test_large_values_neither_overflow_nor_vanish(device):
    gate_up = torch.tensor([[-1e4, 1e4, -100.0, 50.0, 2.0, 3.0, 1.0, 1.0]], device=device).requires_grad_()
    hidden = swiglu(gate_up)
    hidden.sum().backward()
    want, d_gate_up = reference(gate_up, torch.ones_like(hidden))
    torch.testing.assert_close(hidden.double(), want, rtol=1e-6, atol=1e-30)
    torch.testing.assert_close(gate_up.grad.double(), d_gate_up, rtol=1e-6, atol=1e-30)


def test_the_linear_map_keeps_nothing_but_its_inputs(device):
    gate_up, weight, _, d_output = make_inputs((3, 5, 96), FP32, device)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        output = swiglu_linear(gate_up, weight)
    assert {x.data_ptr() for x in saved} == {gate_up.data_ptr(), weight.data_ptr()}
    before = d_output.clone()
    output.backward(d_output, retain_graph=True)
    output.backward(d_output)  # recomputation writes to memory of its own
    assert torch.equal(d_output, before)


def test_float64_is_computed_in_float64():
    gate_up, weight, *_ = (x.detach().requires_grad_() for x in make_inputs((2, 6), torch.float64, "cpu", d_out=3))
    assert torch.autograd.gradcheck(swiglu, gate_up)
    assert torch.autograd.gradcheck(swiglu_linear, (gate_up, weight))


def test_an_odd_width_and_other_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"gate_up must be \[..., 2 d_ff\], got shape \[2, 3\]"):
        swiglu(torch.ones(2, 3))
    for function in (swiglu, lambda x: swiglu_linear(x, torch.ones(3, 2))):
        with pytest.raises(ValueError, match=r"^gate_up is of dtype torch\.complex64; allowed: floating-point dtypes$"):
            function(torch.ones(2, 4, dtype=torch.complex64))
