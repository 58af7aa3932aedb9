"""The data-parallel wrappers besides their gradients: what they start from, refuse, keep alive and cost."""

import copy
import gc
import math
import time
import weakref
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm

from cs336_systems.parallel import data_parallel
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import EVERY_WRAPPER, WRAPPERS, same_on_all_ranks

every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)  # buffers, one of them int64
        self.norm(torch.randn(8, 5))
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.bf16 = nn.Parameter(torch.randn(7).bfloat16())
        self.strided = nn.Parameter(torch.randn(5, 3).mT)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("mask", torch.randn(11) > 0)
        self.register_buffer("table", torch.randn(2, 3), persistent=False)
        self.register_buffer("int16", torch.randint(99, (3,), dtype=torch.int16))
        self.register_buffer("expanded", torch.randn(3).expand(2, 3), persistent=False)


@every_wrapper
@on_all_ranks
def test_all_ranks_start_with_the_parameters_and_buffers_of_rank_0(device, wrapper):
    module = Buffers()
    before = copy.deepcopy([*module.parameters(), *module.buffers()])
    wrapped = WRAPPERS[wrapper](module.to(device))
    after = [*wrapped.parameters(), *wrapped.buffers()]
    for tensors in zip(before, after, strict=True):
        assert same_on_all_ranks([tensors[1]])
        if dist.get_rank() == 0:
            assert torch.equal(tensors[0], tensors[1].cpu())
    assert not same_on_all_ranks([before[0]])
    bare = Buffers()
    bare.load_state_dict(wrapped.module.state_dict())
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in bare.state_dict()]


@every_wrapper
@on_all_ranks
def test_a_step_without_finishing_is_refused(device, wrapper):
    wrapped = WRAPPERS[wrapper](nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(device))
    x = torch.randn(4, 5, device=device)
    losses = [wrapped(x).sum() for _ in range(2)]
    losses[0].backward()
    with torch.no_grad():
        wrapped(x)  # looking at the model in between does no harm
    with pytest.raises(RuntimeError, match=r"^finish_gradient_synchronization\(\) was not called after the last"):
        wrapped(x)
    with pytest.raises(RuntimeError, match=r"^no_sync\(\) begins between"), wrapped.no_sync():
        pass
    with pytest.raises(RuntimeError, match=r"^the gradient of 1\.bias arrived a second time: call finish_gradient"):
        losses[1].backward()
    wrapped.finish_gradient_synchronization()
    wrapped(x).sum().backward()
    wrapped.finish_gradient_synchronization()


def frozen():
    return nn.Linear(5, 3).requires_grad_(False)


def transposed():
    layer = nn.Linear(3, 3)
    layer.weight = nn.Parameter(layer.weight.detach().mT)
    return layer


DIFFERENT = {
    "shape": (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 4), r"rank 1 has weight: float32 \[4, 5\]"),
    "missing": (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3, bias=False), "rank 1 has nothing more"),
    "more": (nn.Identity, lambda: nn.Linear(5, 3), r"rank 1 has weight: float32 \[3, 5\]"),
    "dtype": (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3).double(), r"rank 1 has weight: float64 \[3, 5\]"),
    "layout": (lambda: nn.Linear(3, 3), transposed, r"rank 1 has weight: float32 \[3, 3\] with strides \[1, 3\]"),
    "frozen": (lambda: nn.Linear(5, 3), frozen, r"rank 1 has weight: float32 \[3, 5\], without gradient"),
}


@pytest.mark.parametrize("difference", DIFFERENT)
@on_all_ranks
def test_ranks_that_differ_are_refused_on_all_of_them(device, difference):
    *makers, sentence = DIFFERENT[difference]
    with pytest.raises(ValueError, match=f"^the ranks' models differ: rank 0 has .*{sentence}; allowed: the same"):
        BucketedDataParallel(makers[dist.get_rank()]().to(device), bucket_size_mb=1)


CHANGES = {
    "parameter": (lambda module: setattr(module, "scale", nn.Parameter(torch.ones(3))), "^scale was added or replaced"),
    "layer": (lambda module: module.append(nn.Linear(3, 3)), r"^2\.weight was added or replaced after"),
    "parametrized": (lambda module: weight_norm(module[0]), r"^0\.parametrizations\.weight\.original0 was added"),
    "assigned": (lambda module: module.load_state_dict(module.state_dict(), assign=True), "was added or replaced"),
    "thawed": (lambda module: module.frozen.requires_grad_(), "^frozen was frozen when it was wrapped"),
    "cast": (lambda module: module[0].double(), r"^0\.bias was torch\.float32 on .* and is torch\.float64 on"),
}
"""Changes of a wrapped module, each with the error that refuses it."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wrapper", EVERY_WRAPPER)
@on_all_ranks
def test_a_module_that_changed_is_refused(device, wrapper, change):
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(device)
    module[1].bias.requires_grad_(False)
    wrapped = EVERY_WRAPPER[wrapper](module)
    x = torch.ones(2, 5, device=device)
    module[1].bias.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"^1\.bias was frozen when it was wrapped, and requires a gradient: wrap"):
        wrapped(x)
    module[1].bias.requires_grad_(False)
    module.frozen = nn.Parameter(torch.ones(1), requires_grad=False)  # harmless
    module.forward = lambda x: module[1](module[0](x))
    wrapped(x)
    change, sentence = CHANGES[change]
    change(module)
    with pytest.raises(RuntimeError, match=sentence):
        wrapped(x)


@every_wrapper
@on_all_ranks
def test_only_the_last_wrapper_of_a_module_averages(device, wrapper):
    module = nn.Linear(5, 3).to(device)
    x = torch.full((2, 5), dist.get_rank() + 1.0, device=device)
    for older in (BucketedDataParallel(module), DistributedDataParallel(module)):
        newer = WRAPPERS[wrapper](module)
        newer(x).sum().backward()
        newer.finish_gradient_synchronization()
        assert (module.weight.grad == 3).all()
        module.zero_grad()
        with pytest.raises(RuntimeError, match="allowed: only the last wrapper of a module"):
            older(x)
        if isinstance(older, DistributedDataParallel):
            DistributedDataParallel(older)  # PyTorch's own affair
        for wrap in (WRAPPERS[wrapper], FullyShardedDataParallel):
            with pytest.raises(ValueError, match=r"^the module is a .*, which averages gradients; allowed: the module"):
                wrap(older)
        del newer, older
    with pytest.raises(ValueError, match=r"^the module is a .*, which averages gradients"):
        DistributedDataParallel(WRAPPERS[wrapper](module))
    with pytest.raises(ValueError, match=r"^0\.weight is a DTensor, already sharded|^0 is a FullySharded"):
        WRAPPERS[wrapper](nn.Sequential(FullyShardedDataParallel(module)))


@on_all_ranks
def test_a_module_with_nothing_to_train_and_buckets_of_no_size_are_refused(device):
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        BucketedDataParallel(nn.Linear(5, 3).requires_grad_(False).to(device), bucket_size_mb=1)
    for size in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"^bucket_size_mb is {size}; allowed: numbers above 0$"):
            BucketedDataParallel(nn.Linear(5, 3).to(device), bucket_size_mb=size)
    with pytest.raises(TypeError, match=r"^bucket_size_mb is '25'; allowed: numbers above 0$"):
        BucketedDataParallel(nn.Linear(5, 3).to(device), bucket_size_mb="25")
    with pytest.raises(TypeError, match=r"^the module is <class '.*Linear'>; allowed: a torch\.nn\.Module$"):
        BucketedDataParallel(nn.Linear)


class Layers(nn.Module):
    """Four layers of 11 · 11 + 11 parameters, 528 bytes; calls `between` in the backward pass, before the last two."""

    def __init__(self, between):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(11, 11) for _ in range(4))
        self.between = between

    def forward(self, x):
        for layer in self.layers[:2]:
            x = layer(x)
        x.register_hook(self.between)
        for layer in self.layers[2:]:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("wrapper", "half_way", "sizes"),
    [
        ("naive", 0, [11, 121] * 4),
        ("flat", 0, [528]),
        ("overlapped", 4, [11, 121] * 4),
        ("bucketed, 0.4 kB", 4, [11, 121] * 4),  # a weight has 484 bytes
        ("bucketed, 1.06 kB", 1, [264, 264]),
        ("bucketed, 1 MB", 0, [528]),
    ],
)
@on_all_ranks
def test_communication_starts_when_its_gradients_have_arrived(device, wrapper, half_way, sizes):
    started, at_half_way, at_the_end = [], [], []
    wrap = WRAPPERS.get(wrapper, lambda module: BucketedDataParallel(module, bucket_size_mb=0.00106))
    wrapped = wrap(Layers(lambda gradient: at_half_way.append(len(started))).to(device))
    average = data_parallel.average

    def record(tensor, group):
        started.append(tensor.numel())
        return average(tensor, group)

    with mock.patch.object(data_parallel, "average", record):
        wrapped(torch.randn(2, 11, device=device)).sum().backward()
        at_the_end.append(len(started))
        wrapped.finish_gradient_synchronization()
    assert started == sizes
    assert at_half_way == [half_way]
    assert at_the_end == [0 if wrapper in ("naive", "flat") else len(sizes)]


def assert_freed(make):
    """Assert that a wrapper and its tensors, which `make` returns after some steps, need no garbage collector."""
    gc.collect()
    gc.disable()
    try:
        wrapped, *tensors = make()
        tensors += [*wrapped.parameters(), *(p.grad for p in wrapped.parameters() if p.grad is not None)]
        watched = [weakref.ref(tensor) for tensor in [wrapped, wrapped.module, *tensors]]
        del wrapped, tensors
        deadline = time.monotonic() + 5  # Gloo's threads let go of what they have sent a moment later.
        while any(ref() is not None for ref in watched) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [ref() for ref in watched] == [None] * len(watched)
    finally:
        gc.enable()


@every_wrapper
@on_all_ranks
def test_a_dropped_model_is_freed_without_the_garbage_collector(device, wrapper):
    def make():
        wrapped = WRAPPERS[wrapper](nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(device))
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(torch.randn(4, 5, device=device)).sum().backward()
            wrapped.finish_gradient_synchronization()
        return [wrapped]

    assert_freed(make)


@every_wrapper
@on_all_ranks
def test_a_dropped_wrapper_leaves_the_module_as_it_was(device, wrapper):
    module = nn.Linear(5, 3).to(device)
    wrapped = WRAPPERS[wrapper](module)
    assert all(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
    del wrapped
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
