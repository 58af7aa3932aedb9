"""Memory of the sharded step by closed form, against numbers worked out by hand and tensors of a block that ran."""

import gc
from dataclasses import replace

import pytest
import torch

from cs336_systems.accounting.fused_training import RESERVE, RankMemory, recomputed_flops
from cs336_systems.accounting.leaderboard import CONTEXT, SHAPE, VOCAB_SIZE, rank_flops, step_flops
from cs336_systems.attention import flash_attention
from cs336_systems.model import ROPE_THETA, TransformerLM
from cs336_systems.parallel.update_in_backward import UpdateOfOneRank
from cs336_systems.sizes import ModelShape
from cs336_systems.training.sharded_step import ShardedStep
from tests.support.live_memory import LiveMemory
from tests.training.interpreted import INTERPRETED

HALF = RankMemory(shape=SHAPE, vocab_size=VOCAB_SIZE, tokens=CONTEXT, ranks=2, recomputed=34)


def test_the_leaderboards_rank_by_hand():
    """8 125 698 048 weights; [32768, 4096] in bf16 is 268 435 456 bytes, and a hidden layer is 721 420 288."""
    weights, stream, hidden, log_sum_exp = 8_125_698_048, 268_435_456, 721_420_288, 4 * 32768 * 32
    assert HALF.weights == 2 * weights
    assert HALF.state == 5 * weights
    assert HALF.recomputed_block == 2 * stream + log_sum_exp
    # Norms: input and output of each. Then q, k and v, attention's output, gate and up; and 1 / rms of each token.
    assert HALF.kept_block == (4 + 3 + 1) * stream + log_sum_exp + 2 * hidden + 2 * 4 * 32768
    assert HALF.activations == 34 * HALF.recomputed_block + 2 * stream + 4 * 32768
    assert replace(HALF, recomputed=0).activations == 34 * HALF.kept_block + 2 * stream + 4 * 32768


def test_as_few_blocks_are_computed_again_as_memory_needs():
    fitted = HALF.fitted(150e9)
    assert fitted.total <= (1 - RESERVE) * 150e9 < replace(fitted, recomputed=fitted.recomputed - 1).total
    assert HALF.fitted(1e12).recomputed == 0
    assert f"It fits: a rank needs {fitted.total / 1e9:.3g} GB of 150 GB with {fitted.recomputed} of 34 blocks" in (
        fitted.verdict(150e9)
    )
    assert HALF.fitted(80e9) == HALF
    assert not HALF.fits(80e9)
    assert HALF.verdict(80e9).startswith("It does not fit: a rank needs 85.2 GB with 34 of 34 blocks computed again")


def test_two_ranks_compute_the_leaderboards_step():
    assert 2 * rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT) == sum(step_flops().values())
    once = rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT, recomputed=1) - rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT)
    # q, k, v and output: 4 · 4096² multiplications per token; gate and up: 2 · 4096 · 11008.
    assert once == recomputed_flops(SHAPE, CONTEXT) == 2 * 32768 * (4 * 4096**2 + 2 * 4096 * 11008)


@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_a_forward_pass_leaves_what_the_closed_form_says(recomputed):
    if not INTERPRETED:
        pytest.skip("plain formulas keep other tensors than kernels, which the next test runs")
    shape = ModelShape(d_model=64, d_ff=96, num_layers=2, num_heads=2)
    memory = RankMemory(shape=shape, vocab_size=50, tokens=2 * 24, ranks=2, recomputed=recomputed)
    model = TransformerLM(50, 24, 64, 2, 2, 96, ROPE_THETA, attention=flash_attention)
    step = ShardedStep(model, recomputed=recomputed, make_update=UpdateOfOneRank)
    tokens = torch.randint(50, (2, 25))
    with LiveMemory([*step.model.parameters(), *step.model.buffers(), tokens]) as live:
        loss = step.loss(tokens[:, :-1], tokens[:, 1:])
        gc.collect()
    of_head = 2 * 50 * 64  # the gradient of its weight, which the loss has made
    count = 8  # of the tokens, an int64, by which CapturedStep weighs the loss
    assert live.now - of_head - loss.nbytes - count == memory.activations
