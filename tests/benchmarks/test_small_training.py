"""A contender that trains a small model otherwise than one process does is refused."""

from functools import partial

import pytest
import torch.distributed as dist
from torch.optim import AdamW

from cs336_systems.benchmarks.comparison.builders import ours as builders
from cs336_systems.benchmarks.comparison.small_training import require_same_training
from cs336_systems.experiments.contender import Declared
from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from cs336_systems.measure.memory import Unavailable
from tests.support.ranks import on_all_ranks
from tests.support.wrong_wrappers import Summing

CELL = DataParallelTraining()
"""Only its precision and number of processes count: the small model has a size of its own."""


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
WRONG = ("alone", "summing", "without_updates", "without_state", "without_the_others_updates", "at_half_the_rate")


def new(what, **traits):
    """A contender by what makes it, here or in the benchmark."""
    module = __name__ if what in globals() else builders.__name__
    return Declared(**{"name": what, "title": what, "builder": f"{module}:{what}"} | traits)


@on_all_ranks
def test_what_trains_otherwise_than_one_process_is_refused(device):
    for what in WRONG:
        with pytest.raises(
            AssertionError,
            match=r"^after 3 steps the change of \S+ has a relative error of [\d.]+ against a single process$",
        ):
            require_same_training(new(what), CELL, device)
    with pytest.raises(AssertionError, match="has a relative error of"):  # a baseline that communicates
        require_same_training(new("bucketed", name=BASELINE), CELL, device)
    require_same_training(new("alone", name=BASELINE), CELL, device)
    require_same_training(new("bucketed"), CELL, device)
    with pytest.raises(Unavailable, match=r"^not timed: after 3 steps "):
        require_same_training(new("alone", foreign=True), CELL, device)
