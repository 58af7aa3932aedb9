"""Fused, checkpointed and FP8 models sharded over ranks train as the plain model on the batches of all ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from cs336_systems.attention import flash_attention
from cs336_systems.model import TransformerBlock
from cs336_systems.parallel import FullyShardedDataParallel
from cs336_systems.training import checkpoint_blocks, fuse, linear_cross_entropy, use_fp8
from cs336_systems.training.fused_model import (
    FusedSelfAttention,
    FusedSwiGLU,
    FusedTransformerBlock,
    FusedTransformerLM,
)
from tests.support.ranks import on_all_ranks
from tests.training.test_fused_model import build, loss_of, make_batch
from tests.verify.training import finish


def fused(device, **options):
    return fuse(build(device, attention=flash_attention), **options)


def checkpointed(model, **options):
    checkpoint_blocks(model, **options)
    return model


def torch_sharded(model, kinds):
    for part in model.modules():
        if isinstance(part, kinds) and part is not model:
            fully_shard(part)
    return fully_shard(model)


FSDP = FullyShardedDataParallel
BLOCK = (FusedTransformerBlock,)
MODELS = {
    "a layer at a time": lambda d: FSDP(fused(d)),
    "parts of blocks": lambda d: FSDP(fused(d), together=(FusedSelfAttention, FusedSwiGLU)),
    "the model": lambda d: FSDP(fused(d), together=(FusedTransformerLM,)),
    "hidden layers again": lambda d: FSDP(fused(d, keep_hidden=False), together=BLOCK),
    "checkpointed blocks": lambda d: FSDP(checkpointed(fused(d)), together=BLOCK),
    "checkpointed layers": lambda d: FSDP(checkpointed(fused(d))),
    "checkpointed, not fused": lambda d: FSDP(
        checkpointed(build(d, attention=flash_attention), keep_attention=False), together=(TransformerBlock,)
    ),
    "fully_shard, layers": lambda d: torch_sharded(fused(d), (nn.Linear, nn.Embedding)),
    "fully_shard, checkpointed": lambda d: torch_sharded(checkpointed(fused(d)), BLOCK),
}


def batch(device, ranks):
    """The batches of some ranks, one after another."""
    parts = zip(*(make_batch(device, seed=rank) for rank in ranks), strict=True)
    return tuple(torch.cat(part) for part in parts)


def losses_of(model, ranks, device, loss=loss_of):
    """Mean losses over all ranks of a few steps of training on the batches of `ranks`."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(3):
        value = loss(model, batch(device, ranks))
        value.backward()
        finish(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.detach() / dist.get_world_size())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return total


@pytest.mark.parametrize("name", MODELS)
@on_all_ranks
def test_weights_are_never_stale(name, device):
    everyone = range(dist.get_world_size())
    want = losses_of(build(device, attention=flash_attention), everyone, device)
    got = losses_of(MODELS[name](device), [dist.get_rank()], device)
    assert want[0] - want[-1] > 0.1, "training changes the weights"
    torch.testing.assert_close(got, want, rtol=1e-4, atol=0)


@pytest.mark.parametrize("whole", [FusedTransformerBlock, FusedTransformerLM])
@on_all_ranks
def test_fp8_layers_follow_their_weights(whole, device):
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("needs FP8 tensor cores")

    def eight_bits():
        model = fused(device)
        use_fp8(model)
        return model

    def loss(model, tokens):
        return loss_of(model, [x[:, :8] for x in tokens])  # 16 tokens

    ours, theirs = (eight_bits() for _ in range(2))
    mine = [0]
    want = losses_of(theirs, mine, device, loss)
    got = losses_of(FSDP(ours, together=(whole,)), mine, device, loss)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=0)


class WithLoss(nn.Module):
    """The model and its fused loss, which reads the head's weight without calling the head."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets):
        return linear_cross_entropy(self.model.hidden(inputs), self.model.lm_head.weight, targets)


class WithHead(WithLoss):
    """The same with the head and the loss in a module of their own."""

    def __init__(self, model):
        super().__init__(model)
        self.head = Head(model.lm_head)

    def forward(self, inputs, targets):
        return self.head(self.model.hidden(inputs), targets)


class Head(nn.Module):
    def __init__(self, lm_head):
        super().__init__()
        self.lm_head = lm_head

    def forward(self, hidden, targets):
        return linear_cross_entropy(hidden, self.lm_head.weight, targets)


def fused_loss(model, tokens):
    return model(*tokens)


LOSSES = {
    "whole": lambda model: FSDP(WithLoss(model), together=(WithLoss,)),
    "head": lambda model: FSDP(WithHead(model), together=(*BLOCK, Head)),
    "fully_shard": lambda model: torch_sharded(WithLoss(model), BLOCK),
}


@pytest.mark.parametrize("name", LOSSES)
@on_all_ranks
def test_a_fused_loss_in_a_module_that_is_whole(name, device):
    model = LOSSES[name](fused(device))
    want = losses_of(build(device), range(dist.get_world_size()), device)
    got = losses_of(model, [dist.get_rank()], device, fused_loss)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=0)


@on_all_ranks
def test_sharded_weights_are_refused(device):
    tokens = make_batch(device)
    inside = FSDP(WithLoss(fused(device)), together=BLOCK)
    with pytest.raises(ValueError, match="linear_cross_entropy got a weight that is a DTensor, sharded over ranks"):
        inside(*tokens)
    outside = FSDP(fused(device), together=BLOCK)
    with pytest.raises(ValueError, match="add_rms_norm got a weight that is a DTensor"):
        outside.module.hidden(tokens[0])
    with pytest.raises(TypeError, match="the model has a hook or a forward method of its own; allowed: to fuse first"):
        fuse(FSDP(build(device)).module)
