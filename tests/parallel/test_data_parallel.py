"""The data-parallel wrappers: bitwise right gradients, for every kind of step."""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.parallel import data_parallel
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from tests.support.models import CheckpointedLM, ReentrantLM
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import WRAPPERS
from tests.verify.training import CONTEXT, VOCABULARY, small_transformer

pytestmark = pytest.mark.numeric

every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)
each_way_to_wait = pytest.mark.parametrize("wrapper", ["naive", "bucketed, 0.4 kB", "symmetric memory"])
"""For the gradients after the backward pass, a bucket's gradients, and the other ranks' writes."""


class Branches(nn.Module):
    """The sum of some branches: a rank or a step may use any of them, or none."""

    def __init__(self):
        super().__init__()
        self.small = nn.Linear(5, 3)
        self.bf16 = nn.Linear(5, 7).to(torch.bfloat16)
        self.fp64 = nn.Linear(5, 3, bias=False).double()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.large = nn.Linear(5, 300)
        self.channels_last = nn.Conv2d(3, 4, kernel_size=2).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(3, 5).mT)
        self.tied = nn.Linear(5, 3, bias=False)
        self.tied.weight = self.small.weight
        self.frozen = nn.Linear(5, 3).requires_grad_(False)

    def forward(self, x, names):
        """[batch, 5] to a number."""
        values = {
            "small": lambda: self.small(x),
            "bf16": lambda: self.bf16(x.to(torch.bfloat16)),
            "fp64": lambda: self.fp64(x.double()),
            "scale": lambda: x * self.scale + self.nothing.sum(),
            "large": lambda: self.large(x),
            "channels_last": lambda: self.channels_last(x[:4, :3, None, None].expand(-1, -1, 3, 3)),
            "transposed": lambda: x @ self.transposed,
            "tied": lambda: self.tied(self.frozen.weight.mT @ self.small(x).mT),
        }
        return sum(torch.tanh(values[name]()).sum().float() for name in names)


ALL = ("small", "bf16", "fp64", "scale", "large", "channels_last", "transposed")


def average_by_hand(module):
    """The mean of all ranks' gradients, with None as zero where another rank has one."""
    mine = [None if parameter.grad is None else parameter.grad.cpu() for parameter in module.parameters()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for parameter, gradients in zip(module.parameters(), zip(*everyone, strict=True), strict=True):
        present = [gradient.to(parameter.device) for gradient in gradients if gradient is not None]
        # With two ranks the sum is rounded once and the division by 2 is exact, in whatever order they are done.
        parameter.grad = sum(present) / len(everyone) if present else None
        parameter.largest = torch.stack(present).abs().amax(0) if present else None


def assert_same_gradients(ours, theirs):
    """To the bit; but peers move one rank's gradient half the way to the other's, which rounds three times."""
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        if mine.grad is None:
            continue
        if isinstance(ours, SymmetricMemoryDataParallel):
            assert ((mine.grad - other.grad).abs() <= 2 * torch.finfo(mine.dtype).eps * other.largest).all(), name
        else:
            assert torch.equal(mine.grad, other.grad), name


def wrap_and_copy(wrapper, module):
    """A wrapped module, and one that is not, with the weights that the wrapper gave it."""
    wrapped = WRAPPERS[wrapper](module)
    return wrapped, copy.deepcopy(wrapped.module)


PATTERNS = [(ALL, ALL), (ALL[:3], ALL[2:]), ((), ("small", "large")), (ALL[1:], ALL[1:]), ((), ()), (ALL, ())]
PATTERNS += [(("small", "tied"),) * 2]  # whose weight has the sum of both uses
"""The branches that ranks 0 and 1 use, step after step."""


@every_wrapper
@pytest.mark.parametrize("zero", [{"set_to_none": True}, {"set_to_none": False}, None], ids=str)
@on_all_ranks
def test_gradients_are_means_whichever_parameters_a_rank_uses(device, wrapper, zero):
    wrapped, bare = wrap_and_copy(wrapper, Branches().to(device))
    for pattern in PATTERNS:
        names = pattern[dist.get_rank()]
        x = torch.randn(5, 5, device=device)
        for module in (wrapped, bare):
            if zero is not None:
                module.zero_grad(**zero)
            if names:
                module(x, names).backward()
        wrapped.finish_gradient_synchronization()
        average_by_hand(bare)
        assert_same_gradients(wrapped, bare)
        for mine, other in zip(wrapped.parameters(), bare.parameters(), strict=True):
            if mine.grad is not None:  # What rounding has made of it, it may add to in the next step.
                other.grad.copy_(mine.grad)


@every_wrapper
@on_all_ranks
def test_accumulation_adds_up_on_the_rank_before_it_averages(device, wrapper):
    wrapped, bare = wrap_and_copy(wrapper, Branches().to(device))
    for _ in range(2):
        for module in (wrapped, bare):
            module.zero_grad()
        x = torch.randn(3, 4, 5, device=device)
        with mock.patch.object(data_parallel, "average") as average, wrapped.no_sync():
            wrapped(x[0], ALL).backward()
            wrapped(x[1], ALL).backward()
            average.assert_not_called()
        wrapped(x[2], ALL[:2]).backward()  # what the last pass does not use has a gradient, too
        wrapped.finish_gradient_synchronization()
        for part, names in zip(x, (ALL, ALL, ALL[:2]), strict=True):
            bare(part, names).backward()
        average_by_hand(bare)
        assert_same_gradients(wrapped, bare)


def check_a_step(wrapped, bare, x, forward=None):
    """Compare the gradients of a step, in which the wrapper may be called through another function."""
    for module, call in ((wrapped, wrapped if forward is None else forward), (bare, bare)):
        module.zero_grad()
        call(x).square().mean().backward()
    wrapped.finish_gradient_synchronization()
    average_by_hand(bare)
    assert_same_gradients(wrapped, bare)


@each_way_to_wait
@pytest.mark.parametrize("model", [CheckpointedLM, ReentrantLM])
@on_all_ranks
def test_checkpointed_modules(device, wrapper, model):
    wrapped, bare = wrap_and_copy(wrapper, small_transformer(model).to(device))
    for _ in range(2):
        check_a_step(wrapped, bare, torch.randint(VOCABULARY, (2, CONTEXT), device=device))
