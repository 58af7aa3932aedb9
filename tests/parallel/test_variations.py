"""The variations of the bucketed wrapper: each does what it says, and trains like the bucketed one."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.variations import (
    Bf16WireDataParallel,
    GroupedDataParallel,
    OptimizerOverlapDataParallel,
    PriorityDataParallel,
    SmallLastDataParallel,
)
from tests.support.ranks import on_all_ranks

BUCKET_MB = 0.0003
"""Room for a weight of `layers` and a bias."""


def layers(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).to(device)


def train(wrap, device, steps=3):
    """A trained model, its wrapper, and its last gradients."""
    torch.manual_seed(100 + dist.get_rank())
    module = layers(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    overlaps = wrap is OptimizerOverlapDataParallel
    wrapped = wrap(module, BUCKET_MB, **({"optimizer": optimizer} if overlaps else {}))
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(4, 5, device=device)).square().mean().backward()
        wrapped.finish_gradient_synchronization()
        if not overlaps:
            optimizer.step()
    return wrapped, optimizer


@on_all_ranks
def test_updates_during_the_backward_pass_are_those_after_it(device):
    (usual, its), (varied, own) = train(BucketedDataParallel, device), train(OptimizerOverlapDataParallel, device)
    assert 1 < usual.messages < len(list(usual.parameters()))
    assert all(map(torch.equal, varied.parameters(), usual.parameters()))
    for ours, theirs in zip(varied.parameters(), usual.parameters(), strict=True):
        assert own.state[ours]["step"] == its.state[theirs]["step"] == 3
        assert torch.equal(own.state[ours]["exp_avg_sq"], its.state[theirs]["exp_avg_sq"])


@on_all_ranks
def test_grouped_gradients_stay_where_they_are(device):
    wrapped = GroupedDataParallel(layers(device), BUCKET_MB)
    wrapped(torch.randn(4, 5, device=device)).sum().backward()
    before = [parameter.grad.data_ptr() for parameter in wrapped.parameters()]
    wrapped.finish_gradient_synchronization()
    assert [parameter.grad.data_ptr() for parameter in wrapped.parameters()] == before
    assert len({parameter.grad.untyped_storage().data_ptr() for parameter in wrapped.parameters()}) == len(before)


@on_all_ranks
def test_the_last_gradient_travels_alone(device):
    wrapped = SmallLastDataParallel(layers(device), bucket_size_mb=1)
    assert [len(bucket.parameters) for bucket in wrapped._buckets] == [5, 1]
    assert wrapped._buckets[-1].parameters[0] is wrapped.module[0].weight


@on_all_ranks
def test_gradients_sent_as_bf16_are_means_of_rounded_ones(device):
    wrapped = Bf16WireDataParallel(layers(device), BUCKET_MB)
    with wrapped.no_sync():
        wrapped(torch.randn(4, 5, device=device)).square().sum().backward()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [parameter.grad.cpu() for parameter in wrapped.parameters()])
    wrapped.finish_gradient_synchronization()
    for parameter, gradients in zip(wrapped.parameters(), zip(*everyone, strict=True), strict=True):
        exact = torch.stack(gradients).mean(0)
        rounded = torch.stack([gradient.bfloat16() for gradient in gradients]).float().mean(0)
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter.grad, parameter.grad.bfloat16().float())
        assert torch.allclose(parameter.grad.cpu(), rounded, rtol=2**-7, atol=0)
        assert not torch.equal(parameter.grad.cpu(), exact)


@on_all_ranks
def test_an_update_in_passing_needs_every_gradient(device):
    module = nn.ModuleList([nn.Linear(5, 7), nn.Linear(5, 3)]).to(device)
    optimizer = torch.optim.SGD(module.parameters())
    wrapped = OptimizerOverlapDataParallel(module, 1, optimizer)
    module[0](torch.randn(4, 5, device=device)).sum().backward()
    with pytest.raises(AssertionError, match="a parameter without a gradient"):
        wrapped.finish_gradient_synchronization()


@on_all_ranks
def test_priority_is_for_nccl(device):
    if dist.get_backend() == "gloo":
        with pytest.raises(RuntimeError, match=r"^gloo has no streams that could have a priority"):
            PriorityDataParallel(layers(device), BUCKET_MB)
        return
    groups = len(dist.distributed_c10d._world.pg_map)
    (usual, _), (varied, _) = train(BucketedDataParallel, device), train(PriorityDataParallel, device)
    assert all(map(torch.equal, varied.parameters(), usual.parameters()))
    assert len(dist.distributed_c10d._world.pg_map) == groups + 1
    del varied
    assert len(dist.distributed_c10d._world.pg_map) == groups
