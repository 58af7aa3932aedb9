"""Selective checkpointing: the same gradients, attention once, less memory."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from cs336_systems.attention import flash_attention, plain_attention
from cs336_systems.model import TransformerLM
from cs336_systems.training.checkpointing import checkpoint_blocks
from cs336_systems.training.compiled_blocks import compile_blocks
from cs336_systems.training.fused_model import FusedTransformerLM
from tests.support.operators import Operators


def make(device, attention=flash_attention, layers=3, kind=TransformerLM):
    torch.manual_seed(0)
    with torch.device(device):
        return kind(50, 64, 32, layers, 2, 64, 1e4, attention=attention).to(torch.bfloat16)


def gradients(model, device):
    ids = torch.arange(2 * 48, device=device).view(2, 48) % 50
    model.zero_grad()
    model(ids).float().square().mean().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.numeric
@pytest.mark.parametrize("blocks", [0, 2, None])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", [TransformerLM, FusedTransformerLM])
def test_gradients_are_the_same(kind, keep, blocks, device):
    if device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        plain, ours = make(device, kind=kind), make(device, kind=kind)
        checkpoint_blocks(ours, blocks, keep_attention=keep)
        assert list(plain.state_dict()) == list(ours.state_dict())
        for a, b in zip(gradients(plain, device), gradients(ours, device), strict=True):
            if kind is TransformerLM:
                assert torch.equal(a, b)
            else:  # whose residual stream is added up, and rounded, at the end of a checkpointed block
                assert (a - b).norm() <= 0.05 * a.norm()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("keep", "attention"), [(True, 3), (False, 5)])
def test_attention_runs_once(keep, attention):
    counts = []
    for blocks in (0, 2):
        model = make("cpu")
        checkpoint_blocks(model, blocks, keep_attention=keep)
        with Operators() as operators:
            gradients(model, "cpu")
        counts.append([len(operators.named(name)) for name in ("attention_forward", "mm")])
    (calls, matmuls), (calls_again, matmuls_again) = counts
    assert calls == 3
    assert calls_again == attention
    # Of seven matmuls per block, the last one's result is needed by nobody.
    assert matmuls_again - matmuls == 2 * 6


def saved_bytes(model):
    """Memory that the graph of a forward pass keeps, without parameters and what is not of a block."""
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    parameters = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    x = torch.randn(2, 48, 32, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = model.blocks[0](x)
    return y, sum(size for address, size in kept.items() if address not in parameters)


@pytest.mark.slow
def test_a_compiled_block_keeps_input_output_and_lse():
    model, reference = make("cpu", layers=1), make("cpu", layers=1)
    checkpoint_blocks(model)
    for m in (model, reference):
        m.blocks[0].compile(backend="aot_eager_decomp_partition", fullgraph=True)
    tokens, d, heads = 2 * 48, 32, 2  # as in `gradients`: for another number they would be compiled again
    for keep, (y, size) in {True: saved_bytes(model), False: saved_bytes(reference)}.items():
        y.sum().backward()
        least = tokens * (2 * d + 2 * d + 4 * heads)
        assert (size == least) == keep, f"{size} bytes, input, output and L are {least}"
    for a, b in zip(gradients(model, "cpu"), gradients(reference, "cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-4)


def dropping(attention):
    """A model with dropout: after its feed-forward networks, or in its attention."""
    model = make("cpu", attention=flash_attention)
    for block in model.blocks:
        if attention:
            block.attention.attention = partial(scaled_dot_product_attention, dropout_p=0.5)
        else:
            block.feed_forward = nn.Sequential(block.feed_forward, nn.Dropout(0.5))
    return model


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("segment", [0, 2])
def test_random_numbers_are_repeated(segment, attention):
    plain, ours = dropping(attention), dropping(attention)
    if segment:
        ours.checkpoint_segment = segment
    else:
        checkpoint_blocks(ours, keep_attention=not attention)
    results = []
    for model in (plain, ours):
        torch.manual_seed(1)
        results.append(gradients(model, "cpu"))
    assert all(map(torch.equal, *results))


class Masked(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, *, scale):
        return self.block(x) * scale


def test_blocks_may_have_named_arguments_and_be_shared():
    models = [nn.Module(), nn.Module()]
    for model in models:
        model.blocks = nn.ModuleList([Masked(make("cpu", layers=1).blocks[0])] * 2)
    checkpoint_blocks(models[1])
    x = torch.randn(2, 8, 32).bfloat16()
    results = []
    for model in models:
        scale = torch.tensor(0.5, requires_grad=True)
        y = model.blocks[1](model.blocks[0](x, scale=scale), scale=scale)
        results.append(torch.autograd.grad(y.float().square().sum(), [scale, *model.parameters()]))
    assert all(map(torch.equal, *results))


def test_mistakes_are_refused_and_change_nothing():
    with pytest.raises(ValueError, match="blocks is 4; allowed: 0 to 3"):
        checkpoint_blocks(make("cpu"), 4)
    with pytest.raises(ValueError, match="Linear has no `blocks`"):
        checkpoint_blocks(nn.Linear(2, 2))
    model = make("cpu")
    model.blocks[1].attention.attention = plain_attention
    with pytest.raises(ValueError, match="block 1 does not call flash_attention"):
        checkpoint_blocks(model)
    model.blocks[1].compile(backend="eager")
    with pytest.raises(ValueError, match="block 1 is already compiled"):
        checkpoint_blocks(model, keep_attention=False)
    checkpoint_blocks(model, 1)
    with pytest.raises(ValueError, match="block 0 is already checkpointed"):
        checkpoint_blocks(model)
    assert "forward" not in model.blocks[2].__dict__
    assert model.blocks[2].attention.attention is flash_attention


def test_blocks_are_compiled_in_place():
    model = make("cpu")
    first = model.blocks[0]
    model.blocks.append(first)  # used twice
    names = list(model.state_dict())
    compile_blocks(model, backend="eager")
    compiled = model.blocks[1]._compiled_call_impl
    assert all(block._compiled_call_impl is not None for block in model.blocks)
    assert list(model.state_dict()) == names
    assert model.blocks[0] is first
    with pytest.raises(ValueError, match="block 0 is already compiled"):
        compile_blocks(model)
    assert model.blocks[1]._compiled_call_impl is compiled
    with pytest.raises(ValueError, match=r"Linear has no `blocks`; allowed: models with a ModuleList"):
        compile_blocks(nn.Linear(2, 2))
