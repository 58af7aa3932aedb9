"""What a contender does with a small model before it is timed: it must train it as one process does.

One process has the whole batch, PyTorch's optimizer, and nothing to communicate. A contender whose weights, gradients
or state are sharded is never whole at the size that is timed, where there may be no room for anything to compare with.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from cs336_systems.benchmarks.contest.largest import largest, relative
from cs336_systems.benchmarks.contest.observed import Phases
from cs336_systems.benchmarks.contest.refusal import refuse
from cs336_systems.benchmarks.contest.trial import everyones_tokens, new_model, own_part, phases_of, run

SMALL: Mapping[str, Any] = {
    "size": "checked:d_model=32,d_ff=48,num_layers=2,num_heads=2",
    "context": 8,
    "batch_size": 2,
    "vocab_size": 61,
}
STEPS = 3
"""In the first one state is made, and orders are learned; the second one uses both."""
HYPERPARAMETERS: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-3, "fused": True}
"""So large an eps that the update of a weight with next to no gradient is not all rounding."""
TOLERANCE = {"fp32": 2.0**-9, "bf16": 2.0**-2}
"""Errors of weights' movements that are allowed, relative to these. bf16: autocast against weights in bf16."""

Start = Callable[[nn.Module, Tensor], tuple[Phases, Callable[[], Mapping[str, Tensor]]]]
"""From a model and this rank's tokens to the phases of a step, and a function that gives the whole weights by name."""


def require_same_training(start: Start, cell: Any, device: torch.device, *, alone: bool, foreign: bool) -> None:
    """Let a contender and one process train the same model for some steps, and compare where the weights end.

    Args:
        start: how the contender begins.
        cell: decides model class, precision and number of processes.
        device: this rank's.
        alone: whether each rank trains by itself, on its part of the batch.
        foreign: whether the contender is a library's.

    Raises:
        Unavailable: on all ranks, if a library's trains otherwise.
        AssertionError: on all ranks, if one of this project does.
    """
    small = replace(cell, **SMALL)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # what is timed draws as if this were not
        torch.manual_seed(0)
        reference = new_model(small, device).eval()  # dropout would draw other numbers for other batches
        tokens = everyones_tokens(small, device)
    before = {name: weight.detach().clone() for name, weight in reference.named_parameters()}
    phases, weights = start(copy.deepcopy(reference), own_part(tokens))
    optimizer = AdamW(reference.parameters(), **HYPERPARAMETERS)
    right = phases_of(reference, own_part(tokens) if alone else tokens, small.precision, optimizer)
    for _ in range(STEPS):
        run(phases)
        run(right)
    found = weights()
    errors = {
        name: relative(found[name] - weight.detach(), weight.detach() - before[name])
        for name, weight in reference.named_parameters()
    }
    name, worst = largest(errors, device)
    if not worst <= TOLERANCE[small.precision]:
        refuse(f"after {STEPS} steps {name} is off from one process's by {worst:.1g} of its way", foreign=foreign)
