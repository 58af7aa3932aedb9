"""Comparison of a contender's gradients, at the timed size, with the mean of gradients computed on each rank alone;
and the largest error over all ranks.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cs336_systems.benchmarks.ranks import gather
from cs336_systems.training_step import precision_context

SAMPLES = 1000
"""Approximate number of sampled elements per weight, to check that it changes and agrees on all ranks."""


def own_gradients(model: nn.Module, tokens: Tensor, precision: str) -> dict[str, Tensor]:
    """Compute this rank's gradients for its tokens, [batch, context + 1], by name, without a wrapper's hooks.

    Gradients in `grad` stay unchanged. The arithmetic is a training step's, written out.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with precision_context(precision, tokens.device):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(trained, gradients, strict=True) if gradient is not None}


def largest_error(model: nn.Module, of_rank: Mapping[str, Tensor], *, averaged: bool) -> tuple[str, float]:
    """Compare the gradients in a model's `grad` with each rank's own gradients, or with their mean.

    Returns the weight with the largest error on any rank, and that error, a relative 2-norm.
    """
    parameters = dict(model.named_parameters())
    errors: dict[str, float] = {}
    for name, mine in of_rank.items():
        exact = mine.double()
        if averaged:
            dist.all_reduce(exact, dist.ReduceOp.AVG)
        gradient = parameters[name].grad
        errors[name] = relative(exact if gradient is None else gradient - exact, exact)
    return largest(errors, exact.device)


def sample_weights(model: nn.Module) -> list[Tensor]:
    """Sample some elements of each trained weight, or of this rank's part of it, in fp32."""
    trained = (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    weights = ((weight.to_local() if isinstance(weight, DTensor) else weight).flatten() for weight in trained)
    return [weight[:: max(1, len(weight) // SAMPLES)].float() + 0 for weight in weights]


def some_stay(before: Sequence[Tensor], after: Sequence[Tensor], device: torch.device) -> bool:
    """Whether a weight on any rank has not changed between two samples."""
    stay = any(len(old) and torch.equal(old, new) for old, new in zip(before, after, strict=True))
    return any(rank[0] for rank in gather([stay], device))


def differ_among_ranks(samples: Sequence[Tensor]) -> bool:
    """Whether samples differ between ranks."""
    most, least = torch.cat(list(samples)), torch.cat(list(samples))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return not torch.equal(most, least)


def relative(error: Tensor, whole: Tensor) -> float:
    """The norm of an error relative to the norm of the reference; 0 if there is no error."""
    off = error.norm()
    return (off / whole.norm()).item() if off else 0.0


def largest(errors: Mapping[str, float], device: torch.device) -> tuple[str, float]:
    """Find the largest error of all ranks, and its name; all ranks have the same names. NaN counts as the largest."""
    everyones = torch.tensor(gather(list(errors.values()), device), dtype=torch.float64)
    position = int(everyones.argmax())
    return list(errors)[position % len(errors)], everyones.flatten()[position].item()
