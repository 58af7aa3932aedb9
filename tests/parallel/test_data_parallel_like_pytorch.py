"""Uses of DistributedDataParallel: the wrappers do the same, or refuse them before anything is computed."""

import copy
import io
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from cs336_systems.parallel.data_parallel import BucketedDataParallel
from tests.support.models import Raises
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import EVERY_WRAPPER, SHARDED_OPTIMIZERS

PEERS = {"symmetric memory", "symmetric memory, 40 B"}
every_wrapper = pytest.mark.parametrize("wrapper", EVERY_WRAPPER)


def layers(device):
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(device)


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def assert_step_like_pytorchs(wrapped, device):
    """The gradients of a step, as far as this rank has them, are DistributedDataParallel's."""
    reference = DistributedDataParallel(copy.deepcopy(wrapped.module))
    x = torch.randn(4, 5, device=device)
    for model in (wrapped, reference):
        model.zero_grad()
        model(x).square().mean().backward()
    wrapped.finish_gradient_synchronization()
    ours, theirs = gradients(wrapped.module), gradients(reference.module)
    assert ours
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient + 0, theirs[name])


@every_wrapper
@pytest.mark.parametrize("raises", [False, True])
@on_all_ranks
def test_a_step_that_is_given_up_leaves_no_trace(device, wrapper, raises):
    """Its backward pass has ended, or raised half way; zero_grad and finish_gradient_synchronization follow."""
    wrapped = EVERY_WRAPPER[wrapper](layers(device))
    assert_step_like_pytorchs(wrapped, device)
    x = torch.full((4, 5), 1e3, device=device)
    wrapped.zero_grad()
    if raises:
        handle = wrapped.module[1].register_forward_hook(lambda module, args, output: Raises.apply(output))
        with pytest.raises(ValueError, match="a bad batch"):
            wrapped(x).sum().backward()
        handle.remove()
    else:
        wrapped(x).sum().backward()
    wrapped.zero_grad()
    wrapped.finish_gradient_synchronization()
    assert gradients(wrapped.module) == {}
    assert_step_like_pytorchs(wrapped, device)


@every_wrapper
@on_all_ranks
def test_copies_train_by_themselves_or_are_refused(device, wrapper):
    module = layers(device)
    wrapped = EVERY_WRAPPER[wrapper](module)
    with pytest.raises(TypeError, match=rf"^a {type(wrapped).__name__} cannot be pickled; allowed: the state_dict\(\)"):
        torch.save(wrapped, io.BytesIO())
    if wrapper in (*PEERS, "sharded gradients"):
        for make_copy in (copy.deepcopy, AveragedModel):
            with pytest.raises(TypeError, match=rf"^a {type(wrapped).__name__} cannot be copied.*; allowed: .*new one"):
                make_copy(wrapped)
        return
    copied = copy.deepcopy(wrapped)
    assert_step_like_pytorchs(copied, device)
    assert gradients(module) == {}
    with torch.no_grad():
        copied.module[0].weight += 1
    assert_step_like_pytorchs(wrapped, device)
    assert_step_like_pytorchs(copied, device)
    copied(torch.ones(4, 5, device=device)).sum().backward()
    with pytest.raises(RuntimeError, match=r"^finish_gradient_synchronization\(\) was not called"):
        copied(torch.ones(4, 5, device=device))
    copied.finish_gradient_synchronization()
    assert torch.equal(AveragedModel(wrapped).module.module[0].weight, module[0].weight)


@on_all_ranks
def test_a_copy_stays_in_its_process_group(device):
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    wrapped = BucketedDataParallel(layers(device), 1, process_group=group)
    x = torch.randn(4, 5, device=device)
    copies = [copy.deepcopy(wrapped), copy.deepcopy(wrapped.module)]
    for model in copies:
        model(x).square().mean().backward()
    copies[0].finish_gradient_synchronization()
    for mine, alone in zip(*(model.parameters() for model in copies), strict=True):
        assert torch.equal(mine.grad, alone.grad)
    dist.destroy_process_group(group)


@every_wrapper
@on_all_ranks
def test_fp16_gradients_do_not_overflow_where_their_mean_does_not(device, wrapper):
    """As in DistributedDataParallel: fp16 ends at 65 504, below the sum over two ranks."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(torch.ones(4, dtype=torch.float16)) for _ in range(3))

        def forward(self, x):
            return sum((weight * x).float().sum() for weight in self.weights)

    wrapped = EVERY_WRAPPER[wrapper](Scale().to(device))
    x = torch.full((4,), 45_000.0, dtype=torch.float16, device=device)
    wrapped(x).backward()
    wrapped.finish_gradient_synchronization()
    means = gradients(wrapped.module)
    assert means
    assert all(torch.equal(gradient + 0, x) for gradient in means.values())


class Sparse(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.usual = nn.Linear(5, 3)
        self.tokens = kind(5, 3, sparse=True)


@pytest.mark.parametrize("wrapper", ["bucketed, 1 MB", "sharded gradients"])
@on_all_ranks
def test_modules_that_cannot_be_trained_are_refused_by_name(device, wrapper):
    wrap = EVERY_WRAPPER[wrapper]
    with pytest.raises(ValueError, match=r"^tokens has sparse=True, and so sparse gradients; allowed: sparse=False$"):
        wrap(Sparse(nn.Embedding).to(device))
    with pytest.raises(ValueError, match=r"^tokens has sparse=True"):
        wrap(Sparse(nn.EmbeddingBag).to(device))
    with pytest.raises(ValueError, match=r"^(weight|parameter 0) is on the meta device; allowed: "):
        wrap(nn.Linear(5, 3, device="meta"))
    module = Sparse(nn.Embedding).to(device)
    module.tokens.requires_grad_(False)
    BucketedDataParallel(module, 1)


@on_all_ranks
def test_a_rank_whose_module_is_on_the_meta_device_is_named(device):
    module = nn.Linear(5, 3, device="meta" if dist.get_rank() else device)
    with pytest.raises(ValueError, match=r"rank 1 has weight: float32 \[3, 5\] on the meta device; allowed: the same"):
        BucketedDataParallel(module, 1)


@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_optimizers_refuse_what_they_would_get_wrong(device, kind):
    memory = torch.zeros(6, 5, device=device)
    for first, last in ((memory, memory), (memory, memory.mT), (memory[:4], memory[3:])):
        parameters = [nn.Parameter(tensor) for tensor in (first, torch.zeros(2, device=device), last)]
        shapes = re.escape(f"a parameter of shape {list(first.shape)} and a parameter of shape {list(last.shape)}")
        with pytest.raises(ValueError, match=f"^{shapes} share memory; allowed: "):
            kind(parameters, torch.optim.SGD)
    apart = [nn.Parameter(memory[:3]), nn.Parameter(memory[3:])]
    optimizer = kind(apart, torch.optim.SGD)
    for parameter in apart:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for not_a_class in (torch.optim.SGD(apart), partial(torch.optim.SGD, lr=1), nn.Linear):
        with pytest.raises(
            TypeError, match=r"^optimizer_cls is .*; allowed: a class of optimizers, such as torch\.opt"
        ):
            kind(apart, not_a_class)
    for make_copy in (copy.deepcopy, lambda each: torch.save(each, io.BytesIO())):
        with pytest.raises(
            TypeError, match=rf"^a {kind.__name__} cannot be copied or pickled; allowed: its state_dict"
        ):
            make_copy(optimizer)
