"""Steps of several processes under each wrapper: together they train as one process does."""

import dataclasses

import pytest
import torch
import torch.distributed as dist

from cs336_systems.benchmarks import training_ladder
from cs336_systems.benchmarks.ladder.steps import RungStep
from cs336_systems.experiments.training_ladder import RUNGS, WRAPPED, TrainingLadder
from tests.support.ranks import on_all_ranks

CELL = TrainingLadder(
    size="nano", batch_size=2, context=16, vocab_size=40, warmup=0, steps=1, part="processes", processes=2
)
STEPS = 8


def losses(rung, tokens):
    """The losses of some steps on tokens [sequences, context + 1]."""
    torch.manual_seed(0)
    step, after_steps = RungStep(rung, CELL, tokens), []
    for _ in range(STEPS):
        step()
        after_steps.append(step.loss)
    return torch.stack(after_steps)


@pytest.mark.numeric
@pytest.mark.parametrize("rung", WRAPPED, ids=lambda rung: rung.name)
@on_all_ranks
def test_ranks_train_together_as_one_process(device, rung):
    tokens = torch.randint(40, (4, 17), generator=torch.Generator().manual_seed(1)).to(device)
    # The compiler computes the same, and takes seconds.
    with torch.compiler.set_stance("force_eager"):
        expected = losses(RUNGS["attention" if rung.precision == "autocast" else "fused"], tokens)
        got = losses(rung, tokens.chunk(dist.get_world_size())[dist.get_rank()])
    dist.all_reduce(got)
    assert expected[-1] < 0.9 * expected[0]
    torch.testing.assert_close(got / dist.get_world_size(), expected, rtol=3e-3, atol=0)


@on_all_ranks
def test_times_are_those_of_the_slowest_rank(device):
    cell = dataclasses.replace(CELL, rungs="no_graph,data_parallel")
    rows = training_ladder.measure(cell, torch.device(device))
    steps = {row.details["rung"]: row for row in rows if row.metric == "step"}
    assert {name: row.status for name, row in steps.items()} == {"no_graph": "ok", "data_parallel": "ok"}
    assert not [row for row in rows if row.metric == "floor"]
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, [row.mean for row in steps.values()])
    assert everyones[0] == everyones[1]
