"""Fused models whose weights are sharded: what needs a whole weight refuses one that is not."""

import pytest
from torch import nn

from cs336_systems.attention import flash_attention
from cs336_systems.parallel import FullyShardedDataParallel
from cs336_systems.training import fuse, linear_cross_entropy
from cs336_systems.training.fused_model import (
    FusedTransformerBlock,
)
from tests.support.ranks import on_all_ranks
from tests.training.test_fused_model import build, make_batch


def fused(device, **options):
    return fuse(build(device, attention=flash_attention), **options)


class WithLoss(nn.Module):
    """The model and its fused loss, which reads the head's weight without calling the head."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets):
        return linear_cross_entropy(self.model.hidden(inputs), self.model.lm_head.weight, targets)


@on_all_ranks
def test_sharded_weights_are_refused(device):
    tokens = make_batch(device)
    inside = FullyShardedDataParallel(WithLoss(fused(device)), together=(FusedTransformerBlock,))
    with pytest.raises(ValueError, match="linear_cross_entropy got a weight that is a DTensor, sharded over ranks"):
        inside(*tokens)
    outside = FullyShardedDataParallel(fused(device), together=(FusedTransformerBlock,))
    with pytest.raises(ValueError, match="add_rms_norm got a weight that is a DTensor"):
        outside.module.hidden(tokens[0])
    with pytest.raises(TypeError, match="the model has a hook or a forward method of its own; allowed: to fuse first"):
        fuse(FullyShardedDataParallel(build(device)).module)
