"""Fused models whose weights are sharded: what needs a whole weight refuses one that is not, or calls its layer."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from cs336_systems.attention import flash_attention
from cs336_systems.parallel import BucketedDataParallel, FullyShardedDataParallel
from cs336_systems.training import fuse, linear_cross_entropy
from cs336_systems.training.fused_model import FusedTransformerBlock
from tests.support.ranks import on_all_ranks
from tests.training.test_fused_model import build, loss_of, make_batch
from tests.verify.training import finish


def fused(device, **options):
    return fuse(build(device, attention=flash_attention), **options)


def losses_of(model, ranks, device, loss=loss_of):
    """Mean losses over all ranks of a few steps of training on the batches of `ranks`."""
    batch = [torch.cat(part) for part in zip(*(make_batch(device, seed=rank) for rank in ranks), strict=True)]
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(3):
        value = loss(model, batch)
        value.backward()
        finish(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.detach() / dist.get_world_size())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return total


def fully_sharded_with_hidden(model):
    for part in (model.lm_head, *model.blocks, model):
        fully_shard(part)
    register_fsdp_forward_method(model, "hidden")
    return model


WITH_LAYER = {
    "alone": lambda model: model,
    "data parallel": BucketedDataParallel,
    "blocks": lambda model: FullyShardedDataParallel(model, together=(FusedTransformerBlock,)),
    "layers": FullyShardedDataParallel,
    "fully_shard": fully_sharded_with_hidden,
}


@pytest.mark.parametrize("name", WITH_LAYER)
@on_all_ranks
def test_a_fused_loss_calls_the_layer_of_its_weight(name, device):
    model = WITH_LAYER[name](fused(device))
    everyone = range(dist.get_world_size())

    def loss(model, tokens):
        return linear_cross_entropy(model.hidden(tokens[0]), model.lm_head, tokens[1])

    want = losses_of(build(device), everyone, device)
    got = losses_of(model, everyone if name == "alone" else [dist.get_rank()], device, loss)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=0)
    assert "forward" not in model.lm_head.__dict__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model.nothing


@on_all_ranks
def test_a_compute_dtype_is_that_of_the_fused_loss(device):
    model = FullyShardedDataParallel(fused(device), torch.bfloat16, together=(FusedTransformerBlock,))
    inputs, targets = make_batch(device)
    hidden = model.hidden(inputs)
    assert hidden.dtype is torch.bfloat16
    linear_cross_entropy(hidden, model.lm_head, targets).backward()
    model.finish_gradient_synchronization()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_layers_without_such_a_weight_are_refused():
    hidden, targets = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="the layer has a bias; allowed: a Linear with bias=False"):
        linear_cross_entropy(hidden, nn.Linear(3, 4), targets)
    with pytest.raises(TypeError, match="weight is a Embedding; allowed: a tensor, or the Linear"):
        linear_cross_entropy(hidden, nn.Embedding(3, 4), targets)


@on_all_ranks
def test_sharded_weights_are_refused(device):
    tokens = make_batch(device)
    outside = FullyShardedDataParallel(fused(device), together=(FusedTransformerBlock,))
    with pytest.raises(ValueError, match="add_rms_norm got a weight that is a DTensor"):
        outside.module.hidden(tokens[0])
    with pytest.raises(TypeError, match="the model has a hook or its own forward method; allowed: fusing first"):
        fuse(FullyShardedDataParallel(build(device)).module)
