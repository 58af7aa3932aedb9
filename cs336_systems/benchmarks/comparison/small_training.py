"""Check, before timing, that a contender trains a small model like a single process.

The single process has the whole batch and PyTorch's optimizer. At the timed size, sharded weights, gradients or state
are never unsharded, and there may be no memory for a reference.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from cs336_systems.adapters import by_methods
from cs336_systems.benchmarks.comparison.agreement import first_of_all_ranks
from cs336_systems.benchmarks.comparison.gradients import largest, relative
from cs336_systems.benchmarks.comparison.memory import held
from cs336_systems.benchmarks.comparison.refusal import refuse
from cs336_systems.benchmarks.comparison.training import everyones_tokens, new_model, own_part, phases_of, run, start
from cs336_systems.experiments.contender import Declared
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.training_step import TrainingStep

SMALL: Mapping[str, Any] = {
    "size": "checked:d_model=32,d_ff=48,num_layers=2,num_heads=2",
    "context": 8,
    "batch_size": 2,
    "vocab_size": 61,
}
EVEN_VOCABULARY = 64
"""A vocabulary size divisible by the number of ranks, like all other sizes."""
STEPS = 3
"""Number of steps: the first creates state and records the order of layers, the second uses both."""
HYPERPARAMETERS: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-3, "fused": True}
"""AdamW's hyperparameters; eps is large, so that updates of weights with tiny gradients are not only rounding."""
TOLERANCE = {"fp32": 2.0**-9, "bf16": 2.0**-2}
"""Allowed errors of weight changes, relative to the changes. bf16: autocast against weights in bf16."""
MOST_HELD = {"fsdp": ("parameters", 0.75), "optimizer_sharding": ("optimizer_state", 0.9)}
"""State that the ranks of an experiment share, and the maximum share of one rank in the small model."""


def require_same_training(contender: Declared, cell: Any, device: torch.device, **sizes: int) -> None:
    """Train the same model for some steps with a contender and with one process, and compare the weights.

    The no-communication baseline trains on each rank alone, on its part of the batch. `sizes` replace some of the small
    model's. If the contender is unavailable or trains incorrectly on one rank, it is refused on all.
    """
    small = replace(cell, **{**SMALL, **sizes})
    # The timed run draws the same numbers as without this check.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        reference = new_model(small, device).eval()  # dropout would draw different numbers for other batches
        tokens = everyones_tokens(small, device)
    before = {name: weight.detach().clone() for name, weight in reference.named_parameters()}
    training = start(contender, copy.deepcopy(reference), own_part(tokens), small, **HYPERPARAMETERS)
    alone = contender.name == BASELINE
    optimizer = AdamW(reference.parameters(), **HYPERPARAMETERS)
    batch = own_part(tokens) if alone else tokens
    step = TrainingStep(reference, batch, precision=small.precision, optimizer=optimizer)
    right = phases_of(by_methods(reference), step)
    for _ in range(STEPS):
        run(training.careful)
        run(right)
    moved = {name: (before[name], weight.detach()) for name, weight in reference.named_parameters()}
    weights = training.whole_weights()
    wrong = next(filter(None, (shape_fault(name, weights.get(name), there) for name, (_, there) in moved.items())), "")
    if wrong := first_of_all_ranks(wrong):
        refuse(wrong, foreign=not_ours(contender))
    errors = {name: relative(weights[name] - there, there - here) for name, (here, there) in moved.items()}
    name, worst = largest(errors, device)
    if not worst <= TOLERANCE[small.precision]:
        why = f"after {STEPS} steps the change of {name} has a relative error of {worst:.2g} against a single process"
        refuse(why, foreign=not_ours(contender))
    alone_held = held(replace(training, wrapped=reference, optimizer=optimizer))
    if contender.own and (wrong := first_of_all_ranks(share_fault(held(training), alone_held, cell.name))):
        refuse(wrong, foreign=True)


def share_fault(held_here: Mapping[str, int], alone: Mapping[str, int], experiment: str) -> str:
    """Describe what a rank holds too much of although ranks should share it; empty if nothing."""
    part, most = MOST_HELD.get(experiment, ("parameters", math.inf))
    share = held_here[part] / alone[part]
    return f"a rank holds {share:.2g} of all {part.replace('_', ' ')}" if share > most else ""


def shape_fault(name: str, weight: Tensor | None, right: Tensor) -> str:
    """Describe why a weight cannot be compared; empty if it can."""
    if weight is None:
        return f"after {STEPS} steps there is no {name}"
    if weight.shape != right.shape:
        return f"after {STEPS} steps {name} has the shape {tuple(weight.shape)}, and one process's {tuple(right.shape)}"
    return ""


def not_ours(contender: Declared) -> bool:
    """Whether a contender is a library's or a user's, so that an error loses only its rows."""
    return contender.foreign or contender.own
