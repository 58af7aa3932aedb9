"""Compiled models under the wrappers: bitwise the same gradients and weights, and nothing compiled again."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.parallel.test_data_parallel import check_a_step, each_way_to_wait, wrap_and_copy
from tests.parallel.test_fsdp import TOGETHER, check_copies, check_training
from tests.support.ranks import on_all_ranks

pytestmark = pytest.mark.numeric


@each_way_to_wait
@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.slow)])
@on_all_ranks
def test_compiled_modules(device, wrapper, inside):
    torch._dynamo.reset()
    compiled = partial(torch.compile, backend="aot_eager", fullgraph=True)
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(device)
    wrapped, bare = wrap_and_copy(wrapper, compiled(module) if inside else module)
    forward = wrapped if inside else compiled(wrapped)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            check_a_step(wrapped, bare, torch.randn(4, 5, device=device), forward)


@pytest.mark.parametrize(
    ("name", "together"), [("compiled", ()), ("compiled in place", ()), ("compiled in place", TOGETHER)]
)
@on_all_ranks
def test_sharded_training_is_that_of_data_parallelism_to_the_bit(device, name, together):
    check_training(device, name, together)


@on_all_ranks
def test_copies_gather_the_weights_of_each_step(device):
    check_copies(device, "compiled in place", ())
