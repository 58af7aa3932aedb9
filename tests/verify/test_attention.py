"""Attention of anybody's: the results of attention in float64, at lengths that no tile divides."""

import pytest
import torch

from cs336_systems.benchmarks.comparison.exact_attention import require_close
from cs336_systems.implementations import load_path, parse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 128, 64), (3, 77, 16), (2, 300, 32), (1, 1, 16), (5, 65, 128)]
each_mask = pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])


def call(implementation, q, k, v, is_causal):
    found = load_path(parse(implementation).path)
    is_function = isinstance(found, type) and issubclass(found, torch.autograd.Function)
    return (found.apply if is_function else found)(q, k, v, is_causal)


def make_inputs(shape, dtype, scale=1.0):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad_o = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for _ in range(4))
    return [(scale * q).requires_grad_(), (scale * k).requires_grad_(), v.requires_grad_(), grad_o]


def require_attention(implementation, inputs, is_causal):
    *leaves, grad_o = inputs
    o = call(implementation, *leaves, is_causal)
    assert o.shape == grad_o.shape, f"its o is {list(o.shape)}, and q is {list(grad_o.shape)}"
    gradients = torch.autograd.grad(o, leaves, grad_o)
    found = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
    require_close(found, inputs, is_causal=is_causal)


@each_mask
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(implementation, shape, dtype, is_causal):
    """Output and gradients are those in float64."""
    require_attention(implementation, make_inputs(shape, dtype), is_causal)


@each_mask
def test_large_scores(implementation, is_causal):
    """Scores whose exponentials overflow."""
    inputs = make_inputs((2, 128, 32), torch.float32, scale=5.0)
    assert (inputs[0] @ inputs[1].mT / 32**0.5).max() > 89  # e^89 is more than fp32 holds
    require_attention(implementation, inputs, is_causal)


@each_mask
def test_strides(implementation, is_causal):
    """Inputs that are not contiguous, and a gradient of stride 0."""
    x = torch.randn(128, 3, 2, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    q, k, v = (part.movedim(0, 1) for part in x.unbind(1))
    grad_o = torch.ones(1, 1, 1, device=DEVICE).expand(q.shape)
    o = call(implementation, q, k, v, is_causal)
    gradients = torch.autograd.grad(o, (q, k, v), grad_o)
    found = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
    require_close(found, (q, k, v, grad_o), is_causal=is_causal)
