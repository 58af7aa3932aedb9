"""A contender's training run: a model, its wrapper, its optimizer, and the phases of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo  # an optimizer importing it would keep its frame and the model alive
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from cs336_systems.adapters import Wrapped, by_end, by_methods
from cs336_systems.benchmarks.comparison.agreement import available_on_all_ranks
from cs336_systems.benchmarks.comparison.builders.own import builder_of
from cs336_systems.experiments.contender import Declared
from cs336_systems.model import build_model
from cs336_systems.sizes import parse_size
from cs336_systems.training.cuda_graph import CALLS_OF_DDP, calls_before_capture
from cs336_systems.training_step import TrainingStep

Phases = Mapping[str, Callable[[], None]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run of a contender."""

    model: nn.Module
    names: tuple[str, ...]
    """Names of the model's weights before wrapping."""
    wrapped: nn.Module
    """The wrapped model, which is called."""
    gather: Callable[[], Mapping[str, Tensor]] | None
    """Gathers the unsharded weights by name, if the wrapper has a function for it."""
    optimizer: Optimizer
    step: TrainingStep
    """The step, which has the loss."""
    phases: Phases
    own: bool

    @property
    def calls_before_capture(self) -> int:
        """Eager steps before a capture. A user's own wrapper may contain PyTorch's."""
        return CALLS_OF_DDP if self.own else calls_before_capture(self.wrapped)

    @property
    def careful(self) -> Phases:
        """The phases for untimed steps: if a user's code raises on one rank, no other rank waits for it."""
        if not self.own:
            return self.phases
        return {name: partial(available_on_all_ranks, phase, own=True) for name, phase in self.phases.items()}

    def whole_weights(self) -> Mapping[str, Tensor]:
        """Gather the unsharded weights by their names in the model. All ranks call it."""
        if self.gather:
            return by_end(self.gather(), self.names)
        named = {name: weight.detach() for name, weight in self.model.named_parameters()}
        return {name: weight.full_tensor() if isinstance(weight, DTensor) else weight for name, weight in named.items()}


def start(contender: Declared, model: nn.Module, tokens: Tensor, cell: Any, **hyperparameters: Any) -> Training:
    """Start a contender's training of a model on this rank's tokens; Unavailable on all ranks if it is on one."""
    names = tuple(name for name, _ in model.named_parameters())
    built, optimizer = available_on_all_ranks(
        lambda: builder_of(contender)(model, contender, cell, **hyperparameters), own=contender.own
    )
    wrapped = built if isinstance(built, Wrapped) else by_methods(built)
    precision = cell.precision if contender.autocasts else "fp32"
    step = TrainingStep(wrapped.model, tokens, precision=precision, optimizer=optimizer)
    return Training(
        model=model,
        names=names,
        wrapped=wrapped.model,
        gather=wrapped.gather,
        optimizer=optimizer,
        step=step,
        phases=phases_of(wrapped, step),
        own=contender.own,
    )


def new_model(cell: Any, device: torch.device) -> nn.Module:
    """Make a cell's model with new random weights."""
    return build_model(
        cell.model,
        parse_size(cell.size),
        vocab_size=cell.vocab_size,
        context_length=cell.context,
        device=device,
    )


def everyones_tokens(cell: Any, device: torch.device) -> Tensor:
    """Draw the same batch on all ranks, [processes * batch_size, context + 1]."""
    return torch.randint(cell.vocab_size, (cell.processes * cell.batch_size, cell.context + 1), device=device)


def own_part(tokens: Tensor) -> Tensor:
    """This rank's part of everyone's tokens, [batch_size, context + 1]."""
    return tokens.chunk(dist.get_world_size())[dist.get_rank()]


def phases_of(wrapped: Wrapped, step: TrainingStep) -> dict[str, Callable[[], None]]:
    """Make the phases of a training step; PyTorch's wrappers have no separate synchronization."""
    model, before, after, _ = wrapped
    phases = step.phases("train_step")
    if before:
        phases["forward"] = partial(run, {"": partial(before, model, step.optimizer), "forward": phases["forward"]})
    if after:
        update = phases.pop("optimizer")
        phases |= {"synchronization": partial(after, model, step.optimizer), "optimizer": update}
    return phases


def run(phases: Phases) -> None:
    """Run one step."""
    for phase in phases.values():
        phase()
