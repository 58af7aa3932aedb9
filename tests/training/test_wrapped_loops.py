"""Loops of five lines on several ranks: they train, and leave the same weights on all ranks."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy

from cs336_systems.attention import flash_attention
from cs336_systems.model import TransformerBlock, TransformerLM
from cs336_systems.parallel import (
    BucketedDataParallel,
    FullyShardedDataParallel,
    ShardedOptimizer,
    TrainingState,
    UpdateInBackward,
    units_of,
)
from cs336_systems.training import CapturedStep, FusedTransformerBlock, MasterAdamW, fuse, linear_cross_entropy
from tests.parallel.test_fsdp_state import shared_folder
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import same_on_all_ranks
from tests.verify.training import whole


def captured(net, folder):
    optimizer = MasterAdamW(net.parameters(), lr=0.01)
    model = BucketedDataParallel(fuse(net).bfloat16(), 25)
    return CapturedStep(
        lambda x, y: linear_cross_entropy(model.hidden(x), model.lm_head.weight, y),
        optimizer,
        model=model,
        max_norm=1.0,
    )


def captured_and_sharded(net, folder):
    m = FullyShardedDataParallel(net, torch.bfloat16, together=(TransformerBlock,))
    return CapturedStep(
        lambda x, y: cross_entropy(m(x).flatten(0, 1).float(), y.flatten()),
        torch.optim.AdamW(m.parameters(), lr=0.01, fused=True, capturable=True),
        model=m,
    )


def with_sharded_optimizer(net, folder):
    optimizer = ShardedOptimizer(net.parameters(), MasterAdamW, lr=0.01)
    model = BucketedDataParallel(net)

    def step(x, y):
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.consolidate_state_dict()
        if dist.get_rank() == 0:
            torch.save(state, folder / "optimizer.pt")
        dist.barrier()
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))
        dist.barrier()
        return loss.detach()

    return step


def updated_in_backward(net, folder):
    update = UpdateInBackward(units_of(net), MasterAdamW, lr=0.01, process_group=dist.new_group())

    def step(x, y):
        loss = cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        update.finish()
        dcp.save({"training": TrainingState(net, update)}, checkpoint_id=folder)
        return loss.detach()

    return step


def fused_and_sharded(net, folder):
    model = fuse(net)
    model = FullyShardedDataParallel(model, together=(FusedTransformerBlock,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x, y):
        loss = linear_cross_entropy(model.hidden(x), model.lm_head, y)
        loss.backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    "make", [captured, captured_and_sharded, with_sharded_optimizer, updated_in_backward, fused_and_sharded]
)
@on_all_ranks
def test_a_loop_trains(device, make):
    held, folder = shared_folder()
    with device:
        net = TransformerLM(11, 6, 32, 2, 2, 64, 1e4, attention=flash_attention)
    step = make(net, folder)
    tokens = torch.randint(11, (2, 4, 7), generator=torch.Generator().manual_seed(0)).to(device)
    x, y = tokens[dist.get_rank(), :, :-1].contiguous(), tokens[dist.get_rank(), :, 1:].contiguous()
    losses = [step(x, y).item() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.1
    assert same_on_all_ranks([whole(parameter.detach()) for parameter in net.parameters()])
    dist.barrier()
    if held:
        held.cleanup()
