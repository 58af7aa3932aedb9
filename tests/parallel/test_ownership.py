"""How parameters are shared out among ranks, for any number of them."""

import math

import pytest
import torch

from cs336_systems.model import TransformerLM
from cs336_systems.parallel.ownership import ALIGNMENT, EVEN, plan_buckets

MANY = [*range(1, 4000, 37), 100_003, 7, 0]
"""Numbers in each tensor."""


def tensors(*sizes, dtype=torch.float32):
    return [torch.empty(size, dtype=dtype, device="meta") for size in sizes]


def parts(bucket, members, ranks):
    """Bytes of each owner's tensors in a bucket, as they lie in memory."""
    return [
        sum(math.ceil(members[i].nbytes / ALIGNMENT) * ALIGNMENT for i, owner in bucket.items() if owner == rank)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("bucket_bytes", [1, 10_000, math.inf])
def test_every_tensor_has_one_owner_in_a_bucket_that_is_even_or_has_a_single_owner(ranks, bucket_bytes):
    members = [*tensors(*MANY), *tensors(*MANY, dtype=torch.bfloat16)]
    loads = [0] * ranks
    plan = plan_buckets(members, loads, bucket_bytes)
    assert sorted(i for bucket in plan for i in bucket) == list(range(len(members)))
    assert [max(bucket) for bucket in plan] == sorted(max(bucket) for bucket in plan)
    for bucket in plan:
        assert len({members[i].dtype for i in bucket}) == 1
        sizes = parts(bucket, members, ranks)
        assert len(set(bucket.values())) == 1 or ranks * max(sizes) <= EVEN * sum(sizes)
    owned = [
        sum(members[i].nbytes for bucket in plan for i, owner in bucket.items() if owner == r) for r in range(ranks)
    ]
    assert owned == loads
    # What is given to the rank with least ends at most this far above the mean (Graham 1966).
    assert max(owned) <= sum(owned) / ranks + (1 - 1 / ranks) * max(tensor.nbytes for tensor in members)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_transformer_is_shared_out_evenly_and_travels_in_few_even_buckets(ranks):
    shape = {"d_model": 1600, "d_ff": 6400, "num_layers": 48, "num_heads": 25}
    with torch.device("meta"):
        model = TransformerLM(vocab_size=10_000, context_length=16, rope_theta=1e4, **shape)
    members = list(model.parameters())[::-1]
    total = sum(tensor.nbytes for tensor in members)
    loads = [0] * ranks
    plan = plan_buckets(members, loads, 100e6)
    assert max(loads) <= 1.05 * total / ranks
    assert len(plan) <= total / 100e6
    in_even_buckets = sum(members[i].nbytes for bucket in plan if len(set(bucket.values())) > 1 for i in bucket)
    assert in_even_buckets >= 0.98 * total
