"""What trains a small model otherwise than one process does is not timed, whichever experiment it is a contender of."""

from functools import partial
from unittest import mock

import pytest
import torch.distributed as dist
from torch.optim import AdamW

from cs336_systems.accounting.contenders import Declared
from cs336_systems.benchmarks.contest.builders import data_parallel as builders
from cs336_systems.benchmarks.contest.measure import measure
from cs336_systems.benchmarks.contest.small_training import require_same_training
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.registry import EXPERIMENTS
from tests.parallel.test_ddp_equivalence import Summing
from tests.support.ranks import on_all_ranks

CELL = {
    "size": "odd:d_model=24,d_ff=37,num_layers=2,num_heads=3",
    "context": 7,
    "batch_size": 3,
    "vocab_size": 101,
    "rounds": 1,
    "warmup": 0,
    "steps": 1,
}


def without_updates(model, *entry, **hyperparameters):
    wrapped, optimizer = builders.bucketed(model, *entry, **hyperparameters)
    optimizer.step = lambda: None
    return wrapped, optimizer


def without_state(model, *entry, **hyperparameters):
    wrapped, optimizer = builders.bucketed(model, *entry, **hyperparameters)
    update = optimizer.step

    def step():
        optimizer.state.clear()
        update()

    optimizer.step = step
    return wrapped, optimizer


def without_the_others_updates(model, *entry, **hyperparameters):
    wrapped, _ = builders.bucketed(model, *entry, **hyperparameters)
    return wrapped, AdamW(list(model.parameters())[dist.get_rank() :: 2], **hyperparameters)


def at_half_the_rate(model, *entry, lr, **hyperparameters):
    return builders.bucketed(model, *entry, lr=lr / 2, **hyperparameters)


summing = partial(builders.whole, wrap=Summing)
WRONG = {
    "data_parallel": ("alone", "summing"),
    "optimizer_sharding": ("alone", "without_updates", "without_state", "without_the_others_updates"),
    "fsdp": ("alone", "at_half_the_rate"),
}


def new(what, **traits):
    """A contender by what makes it, here or in the benchmark."""
    module = __name__ if what in globals() else builders.__name__
    return Declared(**{"name": what, "title": what, "builder": f"{module}:{what}"} | traits)


@pytest.mark.parametrize("experiment", WRONG)
@on_all_ranks
def test_what_trains_otherwise_than_one_process_is_not_timed(device, experiment):
    kind = EXPERIMENTS[experiment]
    cell = make_cell(kind, CELL)
    for what in WRONG[experiment]:
        with pytest.raises(AssertionError, match=r"^after 3 steps \S+ is off from one process's by [\d.]+ of its way$"):
            require_same_training(new(what), cell, device)
    with pytest.raises(AssertionError, match="of its way"):  # a baseline that communicates
        require_same_training(new("bucketed", name=FLOOR), cell, device)
    require_same_training(new("alone", name=FLOOR), cell, device)
    wrong = [new(what, foreign=True) for what in WRONG[experiment]]
    with mock.patch.object(kind, "contenders", (kind.contenders[0], *wrong)):
        rows = [row for row in measure(cell, device) if row.details.get(kind.details[0]) in WRONG[experiment]]
    assert [(row.metric, row.status) for row in rows] == [("step", "skipped")] * len(wrong)
    assert all(row.message.startswith("not timed: after 3 steps ") for row in rows)
