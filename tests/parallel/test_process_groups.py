"""Wrappers and optimizers in a part of the ranks: as PyTorch's classes there, without a word to the others."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks import on_four_ranks
from tests.support.wrappers import SHARDED_OPTIMIZERS, WRAPPERS, same_on_all_ranks, sharded_by
from tests.verify.training import take_step

GROUPS = {"disjoint": [(0, 2), (1, 3)], "partial": [(1, 2, 3)]}
ADAM = {"optimizer_cls": torch.optim.AdamW, "lr": 0.01}


def plain(wrap, module, group):
    return wrap(module, process_group=group), torch.optim.AdamW(module.parameters(), lr=0.01)


def sharded(kind, sharded_gradients, module, group):
    build = sharded_by(kind, sharded_gradients, process_group=group, bucket_size_mb=0.0001)
    return build(module, partial(torch.optim.AdamW, lr=0.01))


MAKE = {
    **{name: partial(plain, wrap) for name, wrap in WRAPPERS.items()},
    **{kind.__name__: partial(sharded, kind, False) for kind in SHARDED_OPTIMIZERS},
    **{f"{kind.__name__}, sharded gradients": partial(sharded, kind, True) for kind in SHARDED_OPTIMIZERS},
}


def pytorchs(module, group):
    wrapped = DistributedDataParallel(module, process_group=group)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, process_group=group, lr=0.01)
    return wrapped, optimizer


def my_group(groups):
    """The process group of this rank, and None in place of one that it is not in. All ranks call this."""
    made = [dist.new_group(ranks) for ranks in groups]
    return next((each for each, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks), None)


@pytest.mark.parametrize("division", GROUPS)
@pytest.mark.parametrize("kind", MAKE)
@on_four_ranks
def test_training_in_a_group_is_that_of_pytorch(device, kind, division):
    group = my_group(GROUPS[division])
    if group is not None:
        module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).to(device)
        pairs = [make(copy.deepcopy(module), group) for make in (MAKE[kind], pytorchs)]
        for _ in range(3):
            x = torch.randn(4, 5, device=device)
            for wrapped, optimizer in pairs:
                take_step(wrapped, optimizer, x)
        ours, theirs = (list(wrapped.parameters()) for wrapped, _ in pairs)
        # Adam's update of a gradient that is almost zero depends on its rounding.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        assert same_on_all_ranks(ours, group)
        dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_four_ranks
def test_states_are_brought_together_in_a_group(device, kind):
    group = my_group(GROUPS["partial"])
    if group is not None:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, device=device)) for size in (3, 5, 8)]
        alone = copy.deepcopy(parameters)
        optimizers = [kind(parameters, **ADAM, process_group=group), torch.optim.AdamW(alone, lr=0.01)]
        for members, optimizer in zip((parameters, alone), optimizers, strict=True):
            for parameter in members:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        saved, saved_by_last = optimizers[0].state_dict(), optimizers[0].consolidate_state_dict(to=2)
        assert (saved_by_last is not None) == (dist.get_rank() == 3)
        assert len(optimizers[0].state) == 1
        for number, state in optimizers[1].state_dict()["state"].items():
            assert torch.equal(saved["state"][number]["exp_avg"], state["exp_avg"].cpu())
        dist.destroy_process_group(group)


@on_four_ranks
def test_a_rank_outside_the_group_is_refused(device):
    group = dist.new_group([1, 2, 3])
    dist.barrier()  # nobody leaves the group while others are still connecting to it
    if dist.get_rank() == 0:
        module = nn.Linear(5, 3).to(device)
        sentence = "^process_group does not contain rank 0; allowed: None, or a group with this process$"
        for wrap in WRAPPERS.values():
            with pytest.raises(ValueError, match=sentence):
                wrap(module, process_group=group)
        for kind in SHARDED_OPTIMIZERS:
            with pytest.raises(ValueError, match=sentence):
                kind(module.parameters(), **ADAM, process_group=group)
    else:
        dist.destroy_process_group(group)
