"""The Transformer against an independent float64 reference in NumPy."""

import math

import numpy as np
import pytest
import torch

from cs336_systems.accounting.transformer import block_parameters, parameters
from cs336_systems.model import ATTENTION, TransformerBlock, TransformerLM, load_model_class
from cs336_systems.sizes import SIZES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def build(num_heads=3, d_model=24, device="cpu", context_length=16, **options):
    torch.manual_seed(0)
    with torch.device(device):
        model = TransformerLM(
            vocab_size=37,
            context_length=context_length,
            d_model=d_model,
            num_layers=2,
            num_heads=num_heads,
            d_ff=40,
            rope_theta=10_000.0,
            **options,
        )
    for parameter in model.parameters():  # Norm weights of one would hide a missing multiplication.
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def reference_logits(model, token_ids):
    """The same network in NumPy, float64, one loop per head and position: nothing shared with the code under test."""
    weight = {name: value.detach().double().cpu().numpy() for name, value in model.state_dict().items()}
    heads = model.blocks[0].attention.num_heads

    def norm(x, w):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w

    def rotate(vector, position):
        turned = vector.copy()
        for pair in range(len(vector) // 2):
            angle = position * 10_000.0 ** (-2 * pair / len(vector))
            x, y = vector[2 * pair : 2 * pair + 2]
            turned[2 * pair] = x * math.cos(angle) - y * math.sin(angle)
            turned[2 * pair + 1] = x * math.sin(angle) + y * math.cos(angle)
        return turned

    def attention(x, prefix):
        q, k, v = (x @ weight[f"{prefix}.{name}.weight"].T for name in ("query", "key", "value"))
        width = x.shape[-1] // heads
        out = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            keys = [rotate(k[j, part], j) for j in range(len(x))]
            for i in range(len(x)):
                query = rotate(q[i, part], i)
                scores = np.array([query @ keys[j] / math.sqrt(width) for j in range(i + 1)])
                probabilities = np.exp(scores - scores.max())
                probabilities /= probabilities.sum()
                out[i, part] = sum(probabilities[j] * v[j, part] for j in range(i + 1))
        return out @ weight[f"{prefix}.output.weight"].T

    logits = []
    for sequence in token_ids.cpu().numpy():
        x = weight["token_embedding.weight"][sequence]
        for index in range(len(model.blocks)):
            prefix = f"blocks.{index}"
            x = x + attention(norm(x, weight[f"{prefix}.attention_norm.weight"]), f"{prefix}.attention")
            y = norm(x, weight[f"{prefix}.feed_forward_norm.weight"])
            gate, up, down = (weight[f"{prefix}.feed_forward.{name}.weight"] for name in ("gate", "up", "down"))
            gated = y @ gate.T
            x = x + (gated / (1 + np.exp(-gated)) * (y @ up.T)) @ down.T
        logits.append(norm(x, weight["final_norm.weight"]) @ weight["lm_head.weight"].T)
    return torch.from_numpy(np.stack(logits))


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sequence", [1, 7, 16])
def test_logits_match_float64_reference(device, sequence):
    torch.set_float32_matmul_precision("highest")
    model = build(device=device)
    token_ids = torch.randint(37, (2, sequence), device=device)
    actual = model(token_ids).double().cpu()
    expected = reference_logits(model, token_ids)
    assert (actual - expected).norm() / expected.norm() < 2e-6  # fp32 rounding over two blocks


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
def test_bf16_autocast_stays_near_fp32(device):
    model = build(device=device)
    token_ids = torch.randint(37, (2, 16), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        low = model(token_ids)
    assert low.dtype == torch.bfloat16
    full = model(token_ids)
    relative = (low.double() - full.double()).norm() / full.double().norm()
    assert 1e-5 < relative < 2e-2  # bf16 keeps 8 bits: some error there must be


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", sorted(set(ATTENTION) - {"plain"}))
def test_attention_functions_agree(device, attention):
    model, other = build(device=device), build(device=device, attention=ATTENTION[attention])
    other.load_state_dict(model.state_dict())
    token_ids = torch.randint(37, (2, 13), device=device)
    torch.testing.assert_close(other(token_ids), model(token_ids), rtol=1e-4, atol=1e-5)


@pytest.mark.numeric
def test_gradient_matches_finite_differences():
    model = build().double()
    token_ids, targets = torch.randint(37, (2, 5)), torch.randint(37, (2, 5))

    def loss():
        return torch.nn.functional.cross_entropy(model(token_ids).flatten(0, 1), targets.flatten())

    loss().backward()
    weight = model.blocks[0].attention.key.weight
    gradient, step = weight.grad[3, 5].item(), 1e-4
    with torch.no_grad():
        weight[3, 5] += step
        above = loss().item()
        weight[3, 5] -= 2 * step
        below = loss().item()
    # RMSNorm and the rotation tables compute in fp32, which bounds the agreement.
    assert gradient == pytest.approx((above - below) / (2 * step), rel=5e-2, abs=1e-6)


@pytest.mark.numeric
def test_future_tokens_do_not_change_the_past():
    model = build()
    token_ids = torch.randint(37, (1, 12))
    changed = token_ids.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 37
    before, after = model(token_ids), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_weights_are_made_on_the_target_device():
    model = build(device="meta")
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}


@pytest.mark.parametrize("size", ["nano", "small", "2.7B"])
def test_parameter_count_is_the_closed_form(size):
    shape = SIZES[size]
    with torch.device("meta"):
        model = load_model_class("cs336_systems.model:TransformerLM")(
            vocab_size=10_000, context_length=8, rope_theta=1e4, **vars(shape)
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(shape, 10_000)
    block = next(module for module in model.modules() if isinstance(module, TransformerBlock))
    assert sum(parameter.numel() for parameter in block.parameters()) == block_parameters(shape)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [("nowhere", "allowed: package.module:Class"), ("no.such:Model", "No module"), ("math:Model", "no attribute")],
)
def test_unknown_model_classes_are_named(spec, complaint):
    with pytest.raises(ValueError, match=complaint):
        load_model_class(spec)
