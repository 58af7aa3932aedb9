"""Closed forms of what a block saves and of a step's memory, against autograd and a count of live storages."""

from collections import Counter

import pytest
import torch

from cs336_systems.accounting.activations import BlockActivations, describe_tensor
from cs336_systems.accounting.peak_memory import moments, saved_for_backward
from cs336_systems.accounting.setting import Setting
from cs336_systems.measure.saved_tensors import record_saved
from cs336_systems.model import ATTENTION, RotaryEmbedding, TransformerBlock
from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import TrainingStep, precision_context
from tests.support.live_memory import LiveMemory
from tests.support.models import ours


def saved_by_a_block(device, shape, batch_size, context, precision, attention):
    with torch.device(device):
        rope = RotaryEmbedding(context, shape.d_model // shape.num_heads, 10_000.0)
        block = TransformerBlock(shape.d_model, shape.num_heads, shape.d_ff, rope, ATTENTION[attention])
        x = torch.randn(batch_size, context, shape.d_model, requires_grad=True)
        grad_output = torch.randn_like(x)
    with record_saved(block) as saved, precision_context(precision, x.device):
        block(x).backward(grad_output)
    return saved


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["plain", "flash"])
@pytest.mark.parametrize(
    ("d_model", "d_ff", "num_heads", "batch_size", "context"),
    [(24, 40, 3, 3, 7), (24, 40, 3, 1, 5), (12, 10, 2, 2, 70), (80, 48, 5, 2, 33)],
)
def test_a_block_saves_the_closed_form(device, precision, attention, d_model, d_ff, num_heads, batch_size, context):
    shape = ModelShape(d_model=d_model, d_ff=d_ff, num_layers=1, num_heads=num_heads)
    case = {"shape": shape, "batch_size": batch_size, "context": context, "precision": precision}
    case["attention"] = attention
    expected, saved = BlockActivations(**case, on_gpu=device == "cuda"), saved_by_a_block(device, **case)
    kept = Counter(
        (tensor.range, tensor.operator, describe_tensor(tensor.dtype, tensor.shape), tensor.bytes)
        for tensor in saved
        if tensor.kind == "activation"
    )
    assert kept == Counter((tensor.range, tensor.operator, tensor.tensor, tensor.bytes) for tensor in expected.saved())
    assert sum(tensor.bytes for tensor in saved if tensor.kind == "weight copy") == expected.weight_copies
    # Both norms' weights and the rotation's two tables; in fp32 the seven matrices themselves.
    assert sum(tensor.kind == "parameter" for tensor in saved) == (4 if precision == "bf16" else 11)


def test_a_storage_is_counted_once_and_under_the_module_that_saves_it_first():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    model = torch.nn.ModuleDict({"first": first, "second": second})
    x = torch.randn(5, 3, requires_grad=True)
    with record_saved(model) as saved:
        torch.exp(first(x) + second(x))
    activations = [(tensor.range, tensor.operator, tensor.shape) for tensor in saved if tensor.kind == "activation"]
    assert activations == [("first", "linear", (5, 3)), ("", "exp", (5, 3))]


def test_what_was_recorded_is_not_kept():
    x = torch.randn(5, 3, requires_grad=True)
    with LiveMemory([x]) as live:
        with record_saved(torch.nn.Identity()):
            y = x.exp().sum()
        y.backward()
        x.grad = None
        assert live.now == 4  # the sum alone, though its graph is still there


def most_besides_state(setting):
    """The most bytes in use in a step, without weights and optimizer state."""
    return max(use.total - use.between_steps for use in moments(setting))


def make_step(setting, device):
    """A step whose optimizer has made one update, so that all state is there and no gradient is."""
    options = {"attention": setting.attention, "checkpoint_segment": setting.segment}
    model = ours(setting.shape, setting.vocab_size, setting.context, device, **options)
    tokens = torch.randint(setting.vocab_size, (setting.batch_size, setting.context + 1), device=device)
    precision = {"fp32": "fp32", "autocast": "bf16"}[setting.precision]
    step = TrainingStep(model, tokens, precision=precision, optimizer=torch.optim.AdamW(model.parameters(), fused=True))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step.update()
    model.zero_grad(set_to_none=True)
    return step


@pytest.mark.parametrize("precision", ["fp32", "autocast"])
@pytest.mark.parametrize(
    "segment", [0, pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("num_heads", "sizes"),
    [
        (4, {"batch_size": 3, "context": 130, "vocab_size": 97}),  # the feed-forward network sets the peak
        (12, {"batch_size": 2, "context": 151, "vocab_size": 97}),  # attention does
        (6, {"batch_size": 2, "context": 51, "vocab_size": 997}),  # or, without checkpointing, the loss
        (4, {"batch_size": 3, "context": 33, "vocab_size": 97, "attention": "flash"}),
    ],
)
def test_a_steps_memory_is_the_closed_form(precision, segment, num_heads, sizes):
    shape = ModelShape(d_model=96, d_ff=256, num_layers=7, num_heads=num_heads)
    expected = Setting(shape=shape, precision=precision, segment=segment, on_gpu=False, **sizes)
    step = make_step(expected, "cpu")
    with record_saved(step.model) as saved:
        step.forward()
    assert sum(tensor.bytes for tensor in saved if tensor.kind != "parameter") == saved_for_backward(expected)
    with LiveMemory([*step.model.parameters(), *step.model.buffers(), step.inputs]) as live:
        step.forward()
        step.backward()
    assert live.peak == pytest.approx(most_besides_state(expected), rel=0.01)
