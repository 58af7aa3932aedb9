"""MasterAdamW over sharded parameters: the masters of the model that is not sharded, to the bit."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from cs336_systems.parallel import FullyShardedDataParallel
from cs336_systems.training import MasterAdamW
from tests.support.ranks import on_all_ranks, on_two_and_on_four_ranks
from tests.verify.training import finish, whole

OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def net(device, dtype):
    """Layers of 5, 1 and 7 rows, which two or four ranks do not divide; most ranks have no row of the second."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 1), nn.LayerNorm(1), nn.Linear(1, 7, bias=False))
    return layers.to(device, dtype)


def pytorchs(module):
    for layer in module:
        fully_shard(layer)
    return fully_shard(module)


SHARDED = {"FullyShardedDataParallel": FullyShardedDataParallel, "fully_shard": pytorchs}


def backward(model, step, device):
    """A backward pass of the same tokens on all ranks, so that the mean is each rank's gradient."""
    tokens = torch.randint(5, (8,), generator=torch.Generator().manual_seed(step)).to(device)
    (model(tokens).float() * 10.0 ** (step % 3 - 1)).square().mean().backward()
    finish(model)


def train(model, optimizer, steps, device, under=False):
    for step in steps:
        backward(model, step, device)
        if under:
            assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


def assert_same(optimizer, exact):
    """The same masters and states, though of sharded and whole parameters."""
    for (ours, master), (theirs, expected) in zip(optimizer.masters().items(), exact.masters().items(), strict=True):
        assert torch.equal(whole(master), whole(expected))
        state, wanted = optimizer.state[ours], exact.state[theirs]
        assert state.keys() == wanted.keys()
        for name, value in state.items():
            if name != "remainder":
                assert torch.equal(whole(value), whole(wanted[name])), name


@pytest.mark.numeric
@pytest.mark.parametrize("under", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", SHARDED)
@on_two_and_on_four_ranks
def test_sharded_parameters_train_as_whole_ones(device, kind, dtype, under):
    whole, model = net(device, dtype), SHARDED[kind](net(device, dtype))
    exact, optimizer = (MasterAdamW(m.parameters(), **OPTIONS) for m in (whole, model))
    handle = optimizer.during_backward() if under else nullcontext()
    train(whole, exact, range(6), device)
    train(model, optimizer, range(6), device, under=under)
    assert_same(optimizer, exact)
    for state in optimizer.state.values():
        assert all(isinstance(value, DTensor) for name, value in state.items() if name != "step")
    if under:
        handle.remove()


@on_all_ranks
def test_what_is_not_sharded_alike_is_refused(device):
    model = FullyShardedDataParallel(nn.Linear(4, 6).to(device, torch.bfloat16))
    optimizer = MasterAdamW(model.parameters(), **OPTIONS)
    parameter = model.module.weight
    plain = torch.ones(6, 4, device=device)
    with pytest.raises(ValueError, match=r"a gradient is not sharded; allowed: sharded like its parameter, .*Shard"):
        optimizer.step(gradients={parameter: plain})
    with pytest.raises(ValueError, match="a master is not sharded; allowed: sharded like"):
        optimizer.load_masters({parameter: plain})
    whole = nn.Linear(4, 6).to(device, torch.bfloat16)
    saved = MasterAdamW(whole.parameters())
    saved.prepare()
    with pytest.raises(ValueError, match="exp_avg is not sharded"):
        optimizer.load_state_dict(saved.state_dict())
    assert not optimizer.state
