"""A sharded step in bf16 against the plain model in fp32, trained in one process on the sequences of all ranks."""

import copy

import pytest
import torch
import torch.distributed as dist

from cs336_systems.attention import flash_attention
from cs336_systems.parallel import UpdateInBackward, units_of
from cs336_systems.parallel.update_in_backward import UpdateOfOneRank
from cs336_systems.training import MasterAdamW, checkpoint_blocks, fuse, linear_cross_entropy
from tests.support.ranks import on_all_ranks
from tests.training.test_fused_model import CONTEXT, build, loss_of, make_batch

ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
STEPS = 2


def reference(model):
    """Losses of the steps; the model is trained in fp32."""
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(model.lm_head.weight.device, CONTEXT, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def changes(model, before):
    """All weights less what they were, one after another."""
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    return torch.cat([(after.detach().float() - weight.float()).flatten() for after, weight in pairs])


def check(device, recomputed, ranks, rank, kind):
    """Train on this rank's sequences of a batch of two, and compare losses and weights with fp32."""
    before = build(device, attention=flash_attention).bfloat16().float()
    exact, ours = copy.deepcopy(before), copy.deepcopy(before)
    expected = reference(exact)
    fuse(ours, keep_hidden=False).to(torch.bfloat16)
    checkpoint_blocks(ours, recomputed)
    update = kind(units_of(ours), MasterAdamW, **ADAMW)
    losses = []
    for number in range(STEPS):
        inputs, targets = (part.chunk(ranks)[rank] for part in make_batch(device, CONTEXT, number))
        loss = linear_cross_entropy(ours.hidden(inputs), ours.lm_head.weight, targets)
        loss.backward()
        update.finish()
        losses.append(loss.detach() / ranks)
    total = torch.stack(losses)
    if ranks > 1:
        dist.all_reduce(total)
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=0)
    got, want = changes(ours, before), changes(exact, before)
    # AdamW's first steps are about the signs of gradients, and those near zero are rounding errors.
    assert (got - want).norm() < 0.12 * want.norm()


@pytest.mark.numeric
@pytest.mark.parametrize("recomputed", [0, 1, 2])
@on_all_ranks
def test_two_ranks_train_like_fp32_in_one_process(device, recomputed):
    check(device, recomputed, dist.get_world_size(), dist.get_rank(), UpdateInBackward)


@pytest.mark.numeric
@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_one_process_trains_like_fp32(recomputed, device):
    check(device, recomputed, 1, 0, UpdateOfOneRank)
