"""Whether each rung learns like fp32: losses of short training runs, gradients, and bitwise reproducibility."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from cs336_systems.benchmarks.ladder.steps import RungStep
from cs336_systems.experiments.training_ladder import FIRST, Rung, TrainingLadder
from cs336_systems.record.measurement import Measurement, summarize

SEEDS = 5
"""Number of training runs in fp32, whose spread is the reference for the others."""
AVERAGED = 20
"""Number of last steps whose mean loss is the final loss."""
REPRODUCED = 10
"""Number of steps after which two training runs are compared bit by bit."""
SUCCESSORS = (0.6, 0.2, 0.1, 0.1)


def chain_entropy() -> float:
    """The minimum cross-entropy per token, in nats, of the data below, reached by a model that knows the chain."""
    return -sum(p * math.log(p) for p in SUCCESSORS)


class MarkovChain:
    """Sequences in which each token has four possible successors, the same for all seeds."""

    def __init__(self, vocab_size: int):
        # Four different successors each, so that the entropy follows from their probabilities.
        generator = torch.Generator().manual_seed(336)
        self.following = torch.rand(vocab_size, vocab_size, generator=generator).argsort(dim=1)[:, : len(SUCCESSORS)]

    def batches(self, steps: int, batch_size: int, length: int, seed: int) -> Tensor:
        """Draw integers [steps, batch_size, length] on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        sequences = steps * batch_size
        choices = torch.multinomial(
            torch.tensor(SUCCESSORS), sequences * length, replacement=True, generator=generator
        ).view(length, sequences)
        tokens = [torch.randint(len(self.following), (sequences,), generator=generator)]
        for choice in choices[1:]:
            tokens.append(self.following[tokens[-1], choice])
        return torch.stack(tokens, dim=1).view(steps, batch_size, length)


def train(rung: Rung, cell: TrainingLadder, device: torch.device, *, seed: int, steps: int) -> tuple[RungStep, float]:
    """Train a model from a seed, which also determines the data; return its step and its final mean loss."""
    batches = MarkovChain(cell.vocab_size).batches(steps, cell.batch_size, cell.context + 1, seed).to(device)
    torch.manual_seed(seed)
    tokens = batches[0].clone()
    step = RungStep(rung, cell, tokens)
    losses = []
    for batch in batches:
        tokens.copy_(batch)
        step()
        losses.append(step.loss)
    return step, torch.stack(losses[-AVERAGED:]).mean().item()


def gradients(rung: Rung, cell: TrainingLadder, device: torch.device) -> Tensor:
    """All gradients of the first step in fp32, one after another."""
    torch.manual_seed(0)
    tokens = MarkovChain(cell.vocab_size).batches(1, cell.batch_size, cell.context + 1, seed=0)[0].to(device)
    step = RungStep(rung.apart, cell, tokens)
    step.compute_loss(step.inputs, step.targets).backward()
    return torch.cat([p.grad.float().flatten() for p in step.model.parameters() if p.grad is not None])


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Make PyTorch use deterministic algorithms where it has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def identical(rung: Rung, cell: TrainingLadder, device: torch.device) -> bool:
    """Whether two training runs from one seed end with bitwise identical weights."""
    first, second = (train(rung, cell, device, seed=0, steps=REPRODUCED)[0] for _ in range(2))
    weights = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return all(torch.equal(weight, again) for weight, again in weights)


@deterministic()
def measure_learning(
    rung: Rung, cell: TrainingLadder, device: torch.device, reference: Callable[[], Tensor]
) -> list[Measurement]:
    """Measure a rung's loss after training, its gradients' error against fp32's, and bitwise reproducibility.

    All with deterministic algorithms: otherwise the compiler would compile again.
    """
    details = {"rung": rung.name}
    seeds = range(SEEDS if rung is FIRST else 1)
    losses = [train(rung, cell, device, seed=seed, steps=cell.steps)[1] for seed in seeds]
    rows = [summarize("loss_after", "nat", losses, details=details)]
    if rung is not FIRST:
        exact = reference()
        error = (gradients(rung, cell, device) - exact).norm() / exact.norm()
        rows.append(summarize("gradient_error", "", [error.item()], details=details))
    return [*rows, summarize("identical", "", [float(identical(rung, cell, device))], details=details)]
