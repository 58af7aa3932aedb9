"""The gradients that a contender makes at the size that is timed, beside the mean of those that ranks make alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cs336_systems.benchmarks.contest.largest import largest, relative
from cs336_systems.parallel.gather import gather
from cs336_systems.training_step import precision_context

SAMPLES = 1000
"""About so many numbers of a weight are looked at to see whether it moves, and is the same on all ranks."""


@dataclass(frozen=True, kw_only=True)
class GradientErrors:
    """How far a contender's gradients are from what they should be, by the relative 2-norm."""

    name: str
    """The weight whose gradient is farthest on any rank."""
    worst: float
    """How far."""
    overall: float
    """The error of all this rank's gradients together."""


def own_gradients(model: nn.Module, tokens: Tensor, precision: str) -> dict[str, Tensor]:
    """This rank's gradients of the loss of its tokens, [batch, context + 1], by name; no hook of a wrapper runs.

    Those in `grad` stay as they are. The same arithmetic as a training step's, written out.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with precision_context(precision, tokens.device):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(trained, gradients, strict=True) if gradient is not None}


def gradient_errors(model: nn.Module, own: Mapping[str, Tensor], *, averaged: bool) -> GradientErrors:
    """How far the gradients in a model's `grad` are from those that ranks have made alone, or from their mean."""
    parameters = dict(model.named_parameters())
    errors: dict[str, float] = {}
    everything: list[tuple[float, float]] = []
    for name, mine in own.items():
        exact = mine.double()
        if averaged:
            dist.all_reduce(exact, dist.ReduceOp.AVG)
        found = parameters[name].grad
        error = exact if found is None else found - exact
        errors[name] = relative(error, exact)
        everything.append((error.norm().item(), exact.norm().item()))
    name, worst = largest(errors, exact.device)
    off, whole = torch.tensor(everything, dtype=torch.float64).norm(dim=0)
    return GradientErrors(worst=worst, name=name, overall=relative(off, whole))


def sample_weights(model: nn.Module) -> list[Tensor]:
    """Some numbers of each trained weight, or of this rank's part of it, fp32."""
    trained = (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    weights = ((weight.to_local() if isinstance(weight, DTensor) else weight).flatten() for weight in trained)
    return [weight[:: max(1, len(weight) // SAMPLES)].float() + 0 for weight in weights]


def some_stay(before: Sequence[Tensor], after: Sequence[Tensor], device: torch.device) -> bool:
    """Whether a weight of any rank has not moved from one sample to the other."""
    stay = any(len(old) and torch.equal(old, new) for old, new in zip(before, after, strict=True))
    return any(rank[0] for rank in gather([stay], device))


def differ_among_ranks(samples: Sequence[Tensor]) -> bool:
    """Whether samples of all ranks are not the same."""
    most, least = torch.cat(list(samples)), torch.cat(list(samples))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return not torch.equal(most, least)
