"""The account of optimizer state sharding, at numbers worked out elsewhere."""

import math
from dataclasses import replace

import pytest

from cs336_systems.accounting.optimizer_sharding import SCHEMES, TrainingState, fp32_adamw
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.setting import Setting
from cs336_systems.sizes import SIZES


@pytest.mark.parametrize(
    ("scheme", "gigabytes"), [("data parallel", 120), ("ZeRO-1", 31.4), ("sharded optimizer", 31.4), ("ZeRO-2", 16.6)]
)
def test_memory_is_that_of_zeros_first_figure(scheme, gigabytes):
    # 7.5 B parameters over 64 devices: 2 bytes for each and 2 for its gradient in fp16, 12 for Adam in fp32.
    whole = TrainingState(parameters=2 * 7.5e9, gradients=2 * 7.5e9, optimizer_state=12 * 7.5e9)
    assert SCHEMES[scheme].memory(whole, 64).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("scheme", "two", "four"),
    [("data parallel", 200, 300), ("sharded optimizer", 320, 480), ("ZeRO-1", 220, 330), ("ZeRO-2", 220, 330)],
)
def test_what_a_rank_sends(scheme, two, four):
    # Gradients of 200 bytes and parameters of 240: on two ranks 100 and 120 per ring, on four 150 and 180.
    whole = TrainingState(parameters=240, gradients=200, optimizer_state=1)
    assert SCHEMES[scheme].sent(whole, 2) == two
    assert SCHEMES[scheme].sent(whole, 4) == four
    assert SCHEMES[scheme].sent(whole, 1) == 0


def test_xl_with_adamw():
    # 48 blocks of 4·1600² + 3·1600·6400 + 2·1600 weights, two tables of 10 000·1600 and a norm; 435 step counters.
    weights = 4 * (48 * 40_963_200 + 32_000_000 + 1600)
    whole = fp32_adamw(SIZES["xl"], 10_000)
    assert whole == TrainingState(parameters=weights, gradients=weights, optimizer_state=2 * weights + 4 * 435)
    assert SCHEMES["sharded optimizer"].memory(whole, 2).total == 3 * weights + 4 * 435 / 2


XL = Setting(shape=SIZES["xl"], vocab_size=10_000, batch_size=4, context=512, precision="autocast", on_gpu=False)


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_shared_out_is_missing_at_the_peak(ranks):
    # At xl's peak, at the loss, there is no gradient yet; what is all-reduced in buckets lies in them nevertheless.
    whole, alone = fp32_adamw(SIZES["xl"], 10_000), peak(XL).total
    gradients, state = int(whole.gradients), int(whole.optimizer_state)
    several = replace(XL, ranks=ranks, bucket_mb=math.inf)
    assert peak(replace(several, scheme="data parallel")).total == alone + gradients
    spared = state - math.ceil(state / ranks)
    assert peak(replace(several, scheme="sharded optimizer")).total == alone + gradients - spared
    assert peak(replace(several, scheme="ZeRO-2")).total == alone - spared


def test_where_activations_are_small_the_update_is_the_peak():
    small = replace(XL, vocab_size=100, batch_size=1, context=2, precision="fp32", ranks=4, scheme="ZeRO-2")
    own = SCHEMES["ZeRO-2"].memory(fp32_adamw(SIZES["xl"], 100), 4)
    assert own.total <= peak(small).total < 1.05 * own.total
