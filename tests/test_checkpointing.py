"""Activation checkpointing changes memory and time, nothing else."""

import pytest
import torch

from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import TrainingStep
from tests.support.models import ours
from tests.support.operators import Operators

LAYERS = 5
SHAPE = ModelShape(d_model=48, d_ff=40, num_layers=LAYERS, num_heads=3)


def build(segment, attention="plain", device="cpu"):
    torch.manual_seed(0)
    return ours(SHAPE, 37, 19, device, attention=attention, checkpoint_segment=segment)


def gradients(model, precision="fp32"):
    """By name, after one step; None where a parameter is frozen."""
    device = next(model.parameters()).device
    tokens = torch.randint(37, (2, 20), generator=torch.Generator().manual_seed(1)).to(device)
    step = TrainingStep(model, tokens, precision=precision)
    step.forward()
    step.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert actual[name] is None, name
        elif gradient.is_cuda:  # whose kernels may add in another order
            torch.testing.assert_close(actual[name], gradient)
        else:
            assert torch.equal(actual[name], gradient), name


@pytest.mark.numeric
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["plain", "flash"])
def test_gradients_are_those_without_checkpointing(device, precision, attention):
    expected = gradients(build(0, attention, device), precision)
    assert all(gradient.abs().sum() > 0 for gradient in expected.values())
    for segment in (1, 2, 3, LAYERS, LAYERS + 2):  # 2 and 3 do not divide the depth
        assert_same(gradients(build(segment, attention, device), precision), expected)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "frozen", [[], ["token_embedding.weight"], ["token_embedding.weight", "blocks.0.", "blocks.1.", "blocks.3."]]
)
def test_tied_and_frozen_weights_keep_their_gradients(frozen):
    def prepared(segment):
        model = build(segment)
        if not frozen:
            model.lm_head.weight = model.token_embedding.weight
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(tuple(frozen)))
        return gradients(model)

    expected = prepared(0)
    assert sum(gradient is None for gradient in expected.values()) == {0: 0, 1: 1, 4: 28}[len(frozen)]
    for segment in (1, 2, 3):
        assert_same(prepared(segment), expected)


def test_the_second_run_of_a_segment_ends_before_its_last_product():
    def in_backward(segment):
        step = TrainingStep(build(segment), torch.randint(37, (2, 20)))
        step.forward()
        with Operators() as operators:
            step.backward()
        return len(operators.named("mm"))

    without = in_backward(0)
    for segment, segments in ((1, 5), (2, 3), (LAYERS, 1)):
        # Seven matrices per block; the output of a segment's last one is not saved.
        assert in_backward(segment) - without == 7 * LAYERS - segments


def test_a_negative_segment_is_named():
    with pytest.raises(ValueError, match="checkpoint_segment is -1; allowed: whole numbers from 0"):
        build(-1)
