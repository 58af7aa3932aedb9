"""A step of the training ladder: in bf16 with fused passes, captured in a CUDA graph; in fp32 on a CPU."""

from collections.abc import Iterator
from functools import partial

import torch

from cs336_systems.benchmarks.instruments.work import Call, Work
from cs336_systems.benchmarks.ladder.steps import RungStep
from cs336_systems.experiments.training_ladder import RUNGS, TrainingLadder

CELLS = {
    "cuda": ("graph", TrainingLadder(size="small", batch_size=4, context=1024)),
    "cpu": ("fp32", TrainingLadder(size="micro", batch_size=4, context=128)),
}
"""The rung and the step of each kind of device; the GPU's takes 5 GB of memory."""


def works(device: torch.device) -> Iterator[Work]:
    """The step."""
    rung, cell = CELLS[device.type]
    yield Work(
        name=f"{cell.size}, {cell.batch_size} x {cell.context} tokens",
        metric="token_rate",
        amount=cell.batch_size * cell.context,
        build=partial(build, rung, cell),
        replayed=False,
    )


def build(rung: str, cell: TrainingLadder, device: torch.device) -> Call:
    """Build a model with random weights and its step, which is captured if the rung says so."""
    tokens = torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device)
    step = RungStep(RUNGS[rung], cell, tokens)
    step.prepare()
    return step
