"""The training step: it trains like an explicit loop, and keeps only what it needs alive."""

import weakref

import pytest
import torch

from cs336_systems.model import build_model
from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import PHASES_OF_MODE, TrainingStep

pytestmark = pytest.mark.numeric

CONTEXT, VOCABULARY, BATCH = 8, 32, 4


def make_model(model="cs336_systems.model:TransformerLM"):
    torch.manual_seed(1)
    shape = ModelShape(d_model=8, d_ff=8, num_layers=1, num_heads=2)
    return build_model(model, shape, vocab_size=VOCABULARY, context_length=CONTEXT, device=torch.device("cpu"))


def make_tokens():
    return torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))


def run(step, mode):
    for phase in step.phases(mode).values():
        phase()


def test_an_output_that_is_no_tensor_is_named():
    step = TrainingStep(torch.nn.Identity(), make_tokens())
    step.forward_model = lambda tokens: (tokens, None)
    with pytest.raises(TypeError, match="the model's output is a tuple; allowed: logits, a tensor"):
        step.forward()


@pytest.mark.parametrize(
    "model", ["cs336_systems.model:TransformerLM", "tests.support.models:ConvolutionLM"]
)  # with tied weights
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_phases_train_the_model_as_a_loop_written_out_does(precision, model):
    tokens = make_tokens()
    stepped, looped = make_model(model), make_model(model)
    before = [parameter.detach().clone() for parameter in looped.parameters()]

    step = TrainingStep(stepped, tokens, precision=precision, optimizer=torch.optim.AdamW(stepped.parameters()))
    for _ in range(2):
        run(step, "train_step")

    optimizer = torch.optim.AdamW(looped.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = looped(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()

    for old, mine, theirs in zip(before, stepped.parameters(), looped.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(mine, theirs)
        assert not torch.equal(mine, old)


@pytest.mark.parametrize("mode", PHASES_OF_MODE)
def test_stages_do_what_phases_do(mode):
    tokens = make_tokens()
    losses, weights = [], []
    for parts in ("phases", "stages"):
        model = make_model()
        step = TrainingStep(model, tokens, optimizer=torch.optim.AdamW(model.parameters()))
        for part in getattr(step, parts)(mode).values():
            part()
        losses.append(step.loss)
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert losses[0] == losses[1]
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_inference_makes_logits_without_a_graph():
    step = TrainingStep(make_model(), make_tokens())
    run(step, "inference")
    inferred = step.logits
    assert inferred.shape == (BATCH, CONTEXT, VOCABULARY)
    assert not inferred.requires_grad
    step.make_logits()
    assert step.logits.requires_grad
    assert torch.equal(step.logits, inferred)


@pytest.mark.parametrize("mode", [mode for mode in PHASES_OF_MODE if mode != "inference"])
def test_nothing_of_the_last_step_lives_during_the_next_forward_pass(mode):
    model = make_model()
    step = TrainingStep(model, make_tokens(), optimizer=torch.optim.AdamW(model.parameters()))
    run(step, mode)
    loss = weakref.ref(step.loss)  # which holds the graph
    alive = []
    hook = model.register_forward_pre_hook(
        lambda *_: alive.extend([loss(), *(parameter.grad for parameter in model.parameters())])
    )
    step.forward()
    hook.remove()
    assert len(alive) > 1
    assert all(thing is None for thing in alive)
