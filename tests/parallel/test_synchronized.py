"""Wrappers that average gradients, and updates that use them up in the backward pass, exclude each other."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.parallel import FullyShardedDataParallel, NaiveDataParallel
from cs336_systems.parallel.synchronized import synchronizer_of
from cs336_systems.parallel.update_in_backward import UpdateInBackward
from cs336_systems.training import MasterAdamW
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import EVERY_WRAPPER

WRAPPERS = EVERY_WRAPPER | {"torch DDP": DistributedDataParallel}


def some_frozen(device):
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)).to(device)
    module[0].bias.requires_grad_(False)
    return module


@pytest.mark.parametrize("kind", WRAPPERS)
@on_all_ranks
def test_a_wrapper_and_updates_under_the_backward_pass_exclude_each_other(device, kind):
    module = some_frozen(device)
    optimizer = MasterAdamW(module.parameters())
    wrapped = WRAPPERS[kind](module)
    assert {synchronizer_of(p) for p in module.parameters() if p.requires_grad} == {wrapped}
    assert synchronizer_of(module[0].bias) is None
    name = type(wrapped).__name__
    del wrapped
    gc.collect()
    assert synchronizer_of(module[0].weight) is None, "a wrapper that is gone averages nothing"

    handle = optimizer.during_backward()
    with pytest.raises(ValueError, match=f"MasterAdamW.during_backward consumes .* before {name} could average it"):
        WRAPPERS[kind](module)
    handle.remove()
    handle.remove()
    WRAPPERS[kind](module)


@on_all_ranks
def test_updates_in_backward_exclude_each_other(device):
    module = some_frozen(device).requires_grad_()
    update = UpdateInBackward([[*module.parameters()]], torch.optim.SGD, lr=0.1)
    for refused in (MasterAdamW(module.parameters()).during_backward, lambda: FullyShardedDataParallel(module)):
        with pytest.raises(ValueError, match=r"UpdateInBackward (already )?consumes"):
            refused()
    del update
    gc.collect()
    MasterAdamW(module.parameters()).during_backward()


@on_all_ranks
def test_who_averages_other_parameters(device):
    sharded = FullyShardedDataParallel(some_frozen(device))
    assert {synchronizer_of(p) for p in sharded.parameters()} == {sharded}
    copied = copy.deepcopy(original := NaiveDataParallel(some_frozen(device)))
    assert synchronizer_of(copied.module[0].weight) is copied
    assert synchronizer_of(original.module[0].weight) is original
    assert synchronizer_of(nn.Linear(2, 2).weight) is None


@pytest.mark.parametrize("use_orig_params", [True, False])
@on_all_ranks
def test_the_first_fsdp_of_pytorch_is_known(device, use_orig_params):
    module = TorchFSDP(nn.Linear(8, 4).to(device), use_orig_params=use_orig_params, device_id=device)
    optimizer = MasterAdamW([p for p in module.parameters() if p.numel()])
    narrow = TorchFSDP(nn.Linear(8, 4).to(device, torch.bfloat16), use_orig_params=use_orig_params, device_id=device)
    with pytest.raises(ValueError, match="a bf16 parameter of PyTorch's first FSDP, which cannot save"):
        MasterAdamW([p for p in narrow.parameters() if p.numel()])
    with pytest.raises(ValueError, match="before FullyShardedDataParallel has averaged it"):
        optimizer.during_backward()
