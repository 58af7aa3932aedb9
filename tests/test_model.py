"""The Transformer against the same network in float64, written with PyTorch's own functions."""

import pytest
import torch
from torch.nn import functional as F

from cs336_systems.accounting.transformer import block_parameters, parameters
from cs336_systems.model import ATTENTION, TransformerBlock
from cs336_systems.sizes import SIZES, ModelShape
from tests.support.models import ours, with_random_norms

SHAPE = ModelShape(d_model=24, d_ff=40, num_layers=2, num_heads=3)
WIDTH = 8
"""Of a head."""


def build(device="cpu", **options):
    torch.manual_seed(0)
    return with_random_norms(ours(SHAPE, 37, 16, device, **options))


def reference_logits(weight, token_ids):
    """The same network of PyTorch's own functions, with weights by their names."""
    angles = torch.arange(token_ids.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)

    def norm(x, name):
        return F.rms_norm(x, x.shape[-1:], weight[f"{name}.weight"], 1e-5)

    def linear(x, name):
        return F.linear(x, weight[f"{name}.weight"])

    def rotate(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def attention(x, name):
        heads = (linear(x, f"{name}.{each}").unflatten(-1, (-1, WIDTH)) for each in ("query", "key", "value"))
        q, k, v = (x.transpose(1, 2) for x in heads)
        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return linear(o.transpose(1, 2).flatten(-2), f"{name}.output")

    x = F.embedding(token_ids, weight["token_embedding.weight"])
    for index in range(SHAPE.num_layers):
        block = f"blocks.{index}"
        x = x + attention(norm(x, f"{block}.attention_norm"), f"{block}.attention")
        y = norm(x, f"{block}.feed_forward_norm")
        gated = F.silu(linear(y, f"{block}.feed_forward.gate")) * linear(y, f"{block}.feed_forward.up")
        x = x + linear(gated, f"{block}.feed_forward.down")
    return linear(norm(x, "final_norm"), "lm_head")


@pytest.mark.numeric
@pytest.mark.parametrize("sequence", [1, 7, 16])
def test_logits_and_gradients_match_float64(device, sequence):
    torch.set_float32_matmul_precision("highest")
    model, token_ids = build(device), torch.randint(37, (2, sequence), device=device)
    weight = {name: value.detach().double().cpu().requires_grad_() for name, value in model.named_parameters()}
    actual, expected = model(token_ids), reference_logits(weight, token_ids.cpu())
    assert (actual.double().cpu() - expected).norm() / expected.norm() < 2e-6  # fp32 rounding over two blocks
    gradient = torch.randn(expected.shape)
    actual.backward(gradient.to(device))
    expected.backward(gradient.double())
    for name, parameter in model.named_parameters():
        exact = weight[name].grad  # zero of queries and keys in a sequence of one
        assert (parameter.grad.double().cpu() - exact).norm() < 5e-6 * (1 + exact.norm()), name


@pytest.mark.numeric
def test_bf16_autocast_stays_near_fp32(device):
    model = build(device)
    token_ids = torch.randint(37, (2, 16), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        low = model(token_ids)
    assert low.dtype == torch.bfloat16
    full = model(token_ids)
    relative = (low.double() - full.double()).norm() / full.double().norm()
    assert 1e-5 < relative < 2e-2  # bf16 keeps 8 bits: some error there must be


@pytest.mark.numeric
@pytest.mark.parametrize("attention", sorted(set(ATTENTION) - {"plain"}))
def test_attention_functions_agree(device, attention):
    model, other = build(device), build(device, attention=attention)
    other.load_state_dict(model.state_dict())
    token_ids = torch.randint(37, (2, 13), device=device)
    torch.testing.assert_close(other(token_ids), model(token_ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", ["nano", "small", "2.7B"])
def test_parameter_count_is_the_closed_form(size):
    shape = SIZES[size]
    model = ours(shape, 10_000, 8, "meta")
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(shape, 10_000)
    block = next(module for module in model.modules() if isinstance(module, TransformerBlock))
    assert sum(parameter.numel() for parameter in block.parameters()) == block_parameters(shape)
