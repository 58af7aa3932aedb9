"""What a contender does with a small model before it is timed: it must train it as one process does.

One process has the whole batch, PyTorch's optimizer, and nothing to communicate. A contender whose weights, gradients
or state are sharded is never whole at the size that is timed, where there may be no room for anything to compare with.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from cs336_systems.accounting.contenders import Declared
from cs336_systems.benchmarks.contest.agreement import first_of_all_ranks
from cs336_systems.benchmarks.contest.largest import largest, relative
from cs336_systems.benchmarks.contest.refusal import refuse
from cs336_systems.benchmarks.contest.training import everyones_tokens, new_model, own_part, phases_of, run, start
from cs336_systems.experiments.data_parallel import FLOOR

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


def require_same_training(contender: Declared, cell: Any, device: torch.device) -> None:
    """Let a contender and one process train the same model for some steps, and compare where the weights end.

    Args:
        contender: the baseline trains on each rank by itself, on its part of the batch.
        cell: decides model class, precision and number of processes.
        device: this rank's.

    Raises:
        Unavailable: on all ranks, if it cannot be had on one, or is not this project's and trains otherwise.
        AssertionError: on all ranks, if it is, and does.
    """
    small = replace(cell, **SMALL)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # what is timed draws as if this were not
        torch.manual_seed(0)
        reference = new_model(small, device).eval()  # dropout would draw other numbers for other batches
        tokens = everyones_tokens(small, device)
    before = {name: weight.detach().clone() for name, weight in reference.named_parameters()}
    training = start(contender, copy.deepcopy(reference), own_part(tokens), small, **HYPERPARAMETERS)
    alone = contender.name == FLOOR
    optimizer = AdamW(reference.parameters(), **HYPERPARAMETERS)
    right = phases_of(reference, own_part(tokens) if alone else tokens, small.precision, optimizer)
    for _ in range(STEPS):
        run(training.careful)
        run(right)
    found = training.whole_weights()
    moved = {name: (before[name], weight.detach()) for name, weight in reference.named_parameters()}
    wrong = next(filter(None, (shape_fault(name, found.get(name), there) for name, (_, there) in moved.items())), "")
    if wrong := first_of_all_ranks(wrong):
        refuse(wrong, foreign=not_ours(contender))
    errors = {name: relative(found[name] - there, there - here) for name, (here, there) in moved.items()}
    name, worst = largest(errors, device)
    if not worst <= max(TOLERANCE[small.precision], contender.tolerance):
        why = f"after {STEPS} steps {name} is off from one process's by {worst:.2g} of its way"
        refuse(why, foreign=not_ours(contender))


def shape_fault(name: str, found: Tensor | None, right: Tensor) -> str:
    """What is wrong with a weight that cannot be compared, if it cannot."""
    if found is None:
        return f"after {STEPS} steps there is no {name}"
    if found.shape != right.shape:
        return f"after {STEPS} steps {name} has the shape {tuple(found.shape)}, and one process's {tuple(right.shape)}"
    return ""


def not_ours(contender: Declared) -> bool:
    """Whether what is wrong with a contender costs only its rows."""
    return contender.foreign or contender.own
