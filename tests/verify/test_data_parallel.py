"""A data-parallel wrapper of anybody's: the gradients and weights of one process on the whole batch."""

import pytest
import torch
import torch.distributed as dist

from cs336_systems.implementations import load_path, parse
from tests.support.ranks import on_two_and_on_four_ranks
from tests.verify.training import (
    MODELS,
    STEPS,
    TOLERANCE,
    backward,
    finish,
    make_batches,
    make_model,
    own_part,
    require_same_way,
    train,
    weights_of,
    wrappers,
)

each_model = pytest.mark.parametrize("model", MODELS, ids="{} model".format)


def pairs(implementation, model, device):
    """For each way to wrap: what to call it, a wrapped model and its module, and one that is trained alone."""
    for what, wrap in wrappers(load_path(parse(implementation).path)).items():
        module = make_model(model, seed=dist.get_rank(), device=device)  # the wrapper makes it rank 0's
        yield what, wrap(module), module, make_model(model, seed=0, device=device)


@each_model
@on_two_and_on_four_ranks
def test_start(device, implementation, model):
    """All ranks begin with the weights of rank 0."""
    for what, _, module, alone in pairs(implementation, model, device):
        for name, weight in alone.named_parameters():
            same = torch.equal(module.get_parameter(name), weight)
            assert same, f"{name} of rank {dist.get_rank()} is not rank 0's{what}"


@each_model
@on_two_and_on_four_ranks
def test_gradients(device, implementation, model):
    """Gradients are means over ranks, tied and frozen parameters and those without a gradient included."""
    for what, wrapped, module, alone in pairs(implementation, model, device):
        [batch] = make_batches(1, device)
        backward(wrapped, own_part(batch))
        finish(wrapped)
        backward(alone, batch)
        for name, weight in alone.named_parameters():
            gradient = module.get_parameter(name).grad
            if weight.grad is None:
                assert gradient is None or not gradient.any(), f"{name} has a gradient, though it has no part{what}"
                continue
            assert gradient is not None, f"{name} has no gradient{what}"
            size = (gradient.norm() / weight.grad.norm()).item()
            error = ((gradient - weight.grad).norm() / weight.grad.norm()).item()
            summed = ", as a sum over ranks is" if abs(size - dist.get_world_size()) < 1e-3 else ""
            assert error <= TOLERANCE, (
                f"the gradient of {name} {list(weight.shape)} is off from the mean over ranks by {error:.2g} of it, "
                f"and {size:.3g} times as large{summed}, on rank {dist.get_rank()}{what}"
            )


@each_model
@on_two_and_on_four_ranks
def test_training(device, implementation, model):
    """Weights after three steps are those of one process on the whole batch."""
    compare(implementation, model, device)


def compare(implementation, model, device):
    """Train each way to wrap a model, and return the modules, whose weights have to be those of one process."""
    modules = []
    for what, wrapped, module, alone in pairs(implementation, model, device):
        batches = make_batches(STEPS, device)
        before = weights_of(alone)
        train(wrapped, [own_part(batch) for batch in batches])
        train(alone, batches)
        require_same_way(weights_of(module), weights_of(alone), before, f"after {STEPS} steps{what}")
        modules.append(module)
    return modules
