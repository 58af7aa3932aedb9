"""A fully sharded wrapper of anybody's: the weights of one process on the whole batch, a part of them on each rank."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from cs336_systems.implementations import load_path, parse
from tests.support.ranks import on_two_and_on_four_ranks
from tests.verify.training import (
    MODELS,
    STEPS,
    TOLERANCE,
    make_batches,
    make_model,
    own_part,
    require_same_way,
    train,
    weights_of,
    whole_weights,
)

each_model = pytest.mark.parametrize("model", MODELS, ids="{} model".format)
BF16_TOLERANCE = 2.0**-3
"""Of the way of a weight under a compute_dtype of bf16, whose gradients are rounded many times by up to 2**-9."""


def wrap(implementation, model, device, **options):
    """A sharded model with the weights of rank 0, and one that has them whole."""
    module = make_model(model, seed=dist.get_rank(), device=device)
    return load_path(parse(implementation).path)(module, **options), make_model(model, seed=0, device=device)


@each_model
@on_two_and_on_four_ranks
def test_start(device, implementation, model):
    """Whole weights are at first those of rank 0, whatever their number of rows."""
    wrapped, alone = wrap(implementation, model, device)
    right = weights_of(alone)
    for name, tensor in whole_weights(wrapped, right).items():
        if name in right:
            assert torch.equal(tensor, right[name]), f"{name} {list(right[name].shape)} is not rank 0's"


@each_model
@on_two_and_on_four_ranks
def test_training(device, implementation, model):
    """Weights after three steps are those of one process on the whole batch."""
    compare(implementation, model, device, TOLERANCE)


@on_two_and_on_four_ranks
def test_compute_dtype(device, implementation):
    """Trained in bf16, weights stay fp32 and follow those of one process."""
    found = compare(implementation, "transformer", device, BF16_TOLERANCE, compute_dtype=torch.bfloat16)
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32, f"{name} is {tensor.dtype}"


def compare(implementation, model, device, tolerance, **options):
    wrapped, alone = wrap(implementation, model, device, **options)
    batches, before = make_batches(STEPS, device), weights_of(alone)
    train(wrapped, [own_part(batch) for batch in batches])
    train(alone, batches)
    found = whole_weights(wrapped, before)
    require_same_way(found, weights_of(alone), before, f"after {STEPS} steps", tolerance)
    return found


@on_two_and_on_four_ranks
def test_shares(device, implementation):
    """Between steps a rank holds its share of the weights."""
    wrapped, alone = wrap(implementation, "transformer", device)
    train(wrapped, [own_part(batch) for batch in make_batches(1, device)])
    local = [p.to_local() if isinstance(p, DTensor) else p for p in wrapped.parameters()]
    storages = [p.untyped_storage() for p in local]  # which several may have a part of
    held = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    whole = sum(p.nbytes for p in alone.parameters())
    assert held / whole < 1 / dist.get_world_size() + 0.25, (
        f"rank {dist.get_rank()} holds {held / whole:.2g} of the weights"
    )
