"""The leaderboard's step by closed form, against numbers worked out by hand and tensors of a block that ran."""

import gc
from dataclasses import replace

import pytest
import torch

from cs336_systems.accounting.kept_activations import head_gradient
from cs336_systems.accounting.leaderboard import CONTEXT, FUSED, RANK, SHAPE, VOCAB_SIZE, flops_by_part, rank_flops
from cs336_systems.accounting.peak_memory import peak, saved_for_backward, with_fewest_recomputed
from cs336_systems.accounting.setting import Setting
from cs336_systems.attention import flash_attention
from cs336_systems.benchmarks.leaderboard import verdict
from cs336_systems.experiments.leaderboard import usable
from cs336_systems.model import ROPE_THETA, TransformerLM
from cs336_systems.sizes import ModelShape
from cs336_systems.training import checkpoint_blocks, fuse, linear_cross_entropy
from tests.support.live_memory import LiveMemory
from tests.training.interpreted import INTERPRETED


def test_the_leaderboards_rank_by_hand():
    """8 125 698 048 weights; [32768, 4096] in bf16 is 268 435 456 bytes, and a hidden layer is 721 420 288."""
    weights, stream, hidden, log_sum_exp = 8_125_698_048, 268_435_456, 721_420_288, 4 * 32768 * 32
    use = peak(RANK)
    assert use.parameters == 2 * weights
    assert use.optimizer_state == 5 * weights + 2 * (9 * 34 + 3)
    # Norms: input and output of each. Then q, k and v, attention's output, gate and up; and 1 / rms of each token.
    kept = (4 + 3 + 1) * stream + log_sum_exp + 2 * hidden + 2 * 4 * 32768
    ends = 2 * stream + 4 * 32768 + head_gradient(RANK)
    assert saved_for_backward(replace(RANK, recomputed=34)) == 34 * (2 * stream + log_sum_exp) + ends
    assert saved_for_backward(RANK) == 34 * kept + ends


def test_as_few_blocks_are_computed_again_as_memory_needs():
    fitted = with_fewest_recomputed(RANK, 140e9)
    fewer = replace(fitted, recomputed=fitted.recomputed - 1)
    assert peak(fitted).total <= 140e9 < peak(fewer).total
    assert with_fewest_recomputed(RANK, 1e12).recomputed == 0
    assert with_fewest_recomputed(RANK, 80e9).recomputed == 33
    assert with_fewest_recomputed(RANK, 1e12, least=1).recomputed == 1


def test_a_verdict_says_what_a_rank_needs():
    step = with_fewest_recomputed(RANK, usable(150e9))
    needed = f"a rank needs {peak(step).total / 1e9:.3g} GB"
    assert verdict(step, 150e9).startswith(f"It fits: {needed} of 150 GB with {step.recomputed} of 34 blocks")
    assert verdict(step, 140e9).startswith(f"It does not fit: {needed} with {step.recomputed} of 34 blocks")


def test_two_ranks_compute_the_leaderboards_step():
    assert 2 * rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT) == sum(flops_by_part().values())
    once = rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT, recomputed=1) - rank_flops(SHAPE, VOCAB_SIZE, 1, CONTEXT)
    # q, k, v and output: 4 · 4096² multiplications per token; gate and up: 2 · 4096 · 11008.
    assert once == 2 * 32768 * (4 * 4096**2 + 2 * 4096 * 11008)


@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_a_forward_pass_leaves_what_the_closed_form_says(recomputed):
    if not INTERPRETED:
        pytest.skip("plain formulas keep other tensors than kernels, which the next test runs")
    shape = ModelShape(d_model=64, d_ff=96, num_layers=2, num_heads=2)
    expected = Setting(shape=shape, vocab_size=50, batch_size=2, context=24, recomputed=recomputed, **FUSED)
    model = TransformerLM(50, 24, 64, 2, 2, 96, ROPE_THETA, attention=flash_attention)
    model = fuse(model, keep_hidden=False).to(torch.bfloat16)
    checkpoint_blocks(model, recomputed)
    tokens = torch.randint(50, (2, 25))
    with LiveMemory([*model.parameters(), *model.buffers(), tokens]) as live:
        loss = linear_cross_entropy(model.hidden(tokens[:, :-1]), model.lm_head.weight, tokens[:, 1:])
        gc.collect()
    count = 8  # of the tokens, an int64, by which CapturedStep weighs the loss
    assert live.now - loss.nbytes - count == saved_for_backward(expected)
