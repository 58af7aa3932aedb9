"""The closed form of a step's peak, against tensors that PyTorch keeps and an allocator that the test runs."""

from dataclasses import replace

import pytest
import torch

from cs336_systems.accounting import kept_activations as kept
from cs336_systems.accounting.bucketed_bytes import grouped
from cs336_systems.accounting.peak_memory import moments, peak
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import weight_sizes
from cs336_systems.measure.saved_tensors import record_saved
from cs336_systems.model import ATTENTION, RotaryEmbedding, TransformerBlock
from cs336_systems.sizes import ModelShape
from tests.support.models import ours

MIB = 2**20
ODD = ModelShape(d_model=60, d_ff=104, num_layers=3, num_heads=3)
SETTING = Setting(shape=ODD, vocab_size=131, batch_size=3, context=37)


@pytest.mark.parametrize("attention", ["plain", "flash"])
def test_a_block_of_bf16_weights_keeps_what_autograd_keeps(attention):
    setting = replace(SETTING, precision="bf16", attention=attention)
    rope = RotaryEmbedding(setting.context, ODD.d_model // ODD.num_heads, 10_000.0)
    block = TransformerBlock(ODD.d_model, ODD.num_heads, ODD.d_ff, rope, ATTENTION[attention])
    for parameter in block.parameters():
        parameter.data = parameter.data.bfloat16()
    x = torch.randn(setting.batch_size, setting.context, ODD.d_model, dtype=torch.bfloat16, requires_grad=True)
    with record_saved(block) as saved:
        block(x)
    stored = sum(tensor.bytes for tensor in saved if tensor.kind == "activation")
    assert kept.kept_block(setting) == pytest.approx(stored, rel=0.01)


def test_weights_are_those_of_the_model():
    weights = ours(ODD, 131, 37, "meta").parameters()
    assert weight_sizes(ODD, 131, 4) == [4 * parameter.numel() for parameter in weights]


def test_three_ranks_share_rows_that_three_does_not_divide():
    setting = replace(SETTING, ranks=3, scheme="FSDP", precision="autocast")
    expected = 0
    for rows, columns in [(131, 60)] * 2 + 3 * (4 * [(60, 60)] + 2 * [(104, 60)] + [(60, 104)]):
        chunks = torch.empty(rows, columns, device="meta").chunk(3)
        expected += 4 * max(chunk.numel() for chunk in chunks)
    expected += 4 * 60 * (2 * 3 + 1)  # the norms, whole on each rank
    assert peak(setting).parameters == expected
    alone = peak(replace(setting, ranks=1))
    assert expected * 3 > alone.parameters > expected


@pytest.mark.parametrize("scheme", ["alone", "data parallel", "sharded optimizer", "ZeRO-2", "FSDP"])
@pytest.mark.parametrize("segment", [0, 2])
def test_more_tokens_never_need_less_and_more_ranks_never_more(scheme, segment):
    base = replace(SETTING, scheme=scheme, segment=segment, precision="autocast")
    by_context = [peak(replace(base, ranks=2, context=context)).total for context in (37, 74, 370, 1001)]
    assert by_context == sorted(by_context)
    by_ranks = [peak(replace(base, ranks=ranks)).total for ranks in (2, 3, 8)]
    assert by_ranks == sorted(by_ranks, reverse=True)


def test_recomputing_every_block_keeps_one_block_at_a_time():
    fused = replace(SETTING, precision="bf16", attention="flash", passes="fused", context=5003)
    none, one, two = (peak(replace(fused, recomputed=blocks)).total for blocks in (0, 1, 2))
    assert none > one > two
    activations = max(use.activations for use in moments(replace(fused, recomputed=3)))
    assert kept.kept_block(fused) < activations < 2 * kept.kept_block(fused)


def test_a_bucket_is_closed_before_it_would_be_too_large():
    assert grouped([3, 3, 3, 9, 1, 1, 10, 2], 6) == [[3, 3], [3], [9], [1, 1], [10], [2]]
