"""Closed forms of fully sharded data parallelism against numbers worked out by hand, and against what the code does."""

from unittest import mock

import pytest
import torch
from torch import nn

from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.model import TransformerBlock, TransformerLM
from cs336_systems.parallel import sharded_weight
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.sharded_weight import ShardedWeight
from cs336_systems.sizes import ModelShape
from tests.support.ranks import PROCESSES, on_all_ranks

XL = ModelShape(d_model=2560, d_ff=10240, num_layers=32, num_heads=32)


def test_memory_of_xl_on_two_ranks():
    # A block has 4 · 2560² + 3 · 2560 · 10240 = 104 857 600 numbers; embedding and head 25 600 000 each.
    rank = FullySharded(shape=XL, vocab_size=10_000, ranks=2, precision="bf16")
    assert rank.replicated == 65 * 2560
    assert rank.sharded == (32 * 104_857_600 + 2 * 25_600_000) / 2
    assert rank.weights == 4 * (1_703_321_600 + 166_400)
    assert rank.moments == 8 * (1_703_321_600 + 166_400) + 4 * (9 * 32 + 3)
    assert rank.gathered == 2 * 3 * 2560 * 10240  # gate, up and down
    blocks = FullySharded(shape=XL, vocab_size=10_000, ranks=2, precision="fp32", by_block=True)
    assert (blocks.weights, blocks.moments) == (rank.weights, rank.moments)
    assert blocks.gathered == 4 * 3 * 104_857_600


def test_rows_that_ranks_do_not_divide_are_padded():
    shape = ModelShape(d_model=4, d_ff=5, num_layers=1, num_heads=1)
    rank = FullySharded(shape=shape, vocab_size=7, ranks=3, precision="fp32")
    # Rows 7, 4 (five times), 5 (twice): 3, 2 and 2 on the first rank.
    assert rank.sharded == 3 * 4 + 4 * 2 * 4 + 2 * 2 * 4 + 2 * 5 + 3 * 4
    assert rank.gathered == 4 * (6 * 5 + 9 * 4 + 6 * 4)  # up, down, head


def test_communication_of_xl_on_two_ranks():
    rank = FullySharded(shape=XL, vocab_size=10_000, ranks=2, precision="bf16")
    everything = 2 * (32 * 104_857_600 + 51_200_000)
    assert rank.gathered_in_a_step == 2 * everything - 2 * 51_200_000
    assert rank.reduced_in_a_step == everything
    assert rank.sent_in_a_step == (3 * everything - 2 * 51_200_000) / 2


SHAPE = ModelShape(d_model=12, d_ff=19, num_layers=3, num_heads=3)
VOCABULARY, CONTEXT = 17, 6


@pytest.mark.parametrize("by_block", [False, True])
@on_all_ranks
def test_closed_forms_are_what_a_step_gathers_reduces_and_keeps(device, by_block):
    expected = FullySharded(shape=SHAPE, vocab_size=VOCABULARY, ranks=PROCESSES, precision="bf16", by_block=by_block)
    model = TransformerLM(VOCABULARY, CONTEXT, SHAPE.d_model, SHAPE.num_layers, SHAPE.num_heads, SHAPE.d_ff, 1e4)
    together = (TransformerBlock,) if by_block else ()
    fsdp = FullyShardedDataParallel(model.to(device), torch.bfloat16, together=together)
    counts = {"gathered": 0, "reduced": 0, "most": 0}
    weights = fsdp.sharded_weights.values()
    prepare, scatter = ShardedWeight.prepare_gather, sharded_weight.reduce_scatter_single

    def log_gather(weight):
        result = prepare(weight)
        whole = sum(weight.whole.untyped_storage().nbytes() for weight in weights)
        counts["most"] = max(counts["most"], whole)
        counts["gathered"] += weight.whole.untyped_storage().nbytes()
        return result

    def log_reduction(received, gradient, *arguments, **options):
        counts["reduced"] += gradient.nbytes
        return scatter(received, gradient, *arguments, **options)

    tokens = torch.randint(VOCABULARY, (2, CONTEXT), device=device)
    for step in range(2):
        if step:  # The first one has looked at nothing ahead.
            counts = dict.fromkeys(counts, 0)
        with (
            mock.patch.object(ShardedWeight, "prepare_gather", log_gather),
            mock.patch.object(sharded_weight, "reduce_scatter_single", log_reduction),
        ):
            nn.functional.cross_entropy(fsdp(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
            fsdp.finish_gradient_synchronization()
    assert counts["most"] == expected.gathered
    assert counts["gathered"] == expected.gathered_in_a_step
    assert counts["reduced"] == expected.reduced_in_a_step
    kept = sum(parameter.to_local().nbytes for parameter in fsdp.parameters())
    gradients = sum(parameter.grad.to_local().nbytes for parameter in fsdp.parameters())
    if torch.distributed.get_rank() == 0:
        assert kept == gradients == expected.weights
    assert kept <= expected.weights
