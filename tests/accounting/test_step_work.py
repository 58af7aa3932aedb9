"""Closed forms of a step's work, against numbers from elsewhere and counts of a real step."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.accounting import transformer
from cs336_systems.accounting.block_work import plain_block
from cs336_systems.accounting.step_work import SPLIT_UPDATE_BYTES, linear_maps, pass_bytes
from cs336_systems.experiments.training_ladder import TOP
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep
from tests.support.models import ours

OURS = {"size": "2.7B", "batch_size": 4, "context": 1024, "vocab_size": 10_000}


def step_flops(size, batch_size, context, vocab_size, *, causal=True):
    return transformer.step_flops("train_step", parse_size(size), vocab_size, batch_size, context, causal=causal)


def test_flops_are_those_of_a_step_that_was_timed_elsewhere():
    # A prototype's 170.9 ms are 50.4 % of 989 TFLOP/s, and its 641.9 ms at 8 x 2048 are 55.0 %.
    assert step_flops(**OURS) / 0.1709 / 989e12 == pytest.approx(0.504, abs=5e-4)
    assert step_flops("2.7B", 8, 2048, 10_000) / 0.6419 / 989e12 == pytest.approx(0.550, abs=5e-4)
    eight = "8Bx8:d_model=4096,d_ff=11008,num_layers=8,num_heads=32"
    assert step_flops(eight, 1, 32768, 32_000) / 0.9791 / 989e12 == pytest.approx(0.573, abs=5e-4)


def test_flops_are_those_of_the_matmuls_of_a_real_step():
    shape = parse_size("nano")
    step = TrainingStep(ours(shape, 50, 24), torch.randint(50, (3, 25)))
    counts = {}
    for stage in (step.forward, step.backward):
        with FlopCounterMode(display=False) as counter:
            stage()
        counts[stage.__name__] = counter.get_total_flops()
    # The counter knows nothing of masks; plain attention computes all scores.
    assert counts["backward"] == 2 * counts["forward"]
    assert sum(counts.values()) == step_flops("nano", 3, 24, 50, causal=False)
    setting = TOP.setting({"size": "nano", "batch_size": 3, "context": 24, "vocab_size": 50})
    maps = [*linear_maps(setting) * shape.num_layers, (shape.d_model, 50)]
    assert sum(2 * setting.tokens * d_in * d_out for d_in, d_out in maps) == transformer.matmul_flops(shape, 50, 72)


def test_the_update_moves_what_its_tensors_hold():
    weights = 7 * 11
    read = {"gradient": torch.bfloat16, "weight": torch.bfloat16, "remainder": torch.int16}
    read |= {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    bytes_read = sum(torch.empty(weights, dtype=dtype).nbytes for dtype in read.values())
    bytes_written = bytes_read - torch.empty(weights, dtype=read["gradient"]).nbytes
    assert (bytes_read + bytes_written) / weights == SPLIT_UPDATE_BYTES


def test_passes_of_a_block_move_its_tensors_once():
    # One token of a block with d = 4 and d_ff = 16, written out as tensors of d or d_ff bf16 numbers.
    one = TOP.setting({"size": "one:d_model=4,d_ff=16,num_layers=1,num_heads=1", "batch_size": 1, "context": 1})
    block = sum(pass_bytes(one))
    norms = 2 * (["x", "delta", "sum", "normed", "d_sum", "d_normed", "sum", "d_x"])
    rotation = 2 * ["q in", "k in", "q out", "k out"]
    swiglu = ["gate", "up", "hidden", "gate", "up", "d_hidden", "d_gate", "d_up"]
    assert block == 2 * (4 * (len(norms) + len(rotation)) + 16 * len(swiglu))


def test_the_work_of_a_block_is_that_of_its_kernels():
    # small at batch 4, context 512: 2048 tokens of 768, feed-forward 3072, 12 heads of 64; 12.6 M scores.
    work = plain_block(parse_size("small"), 4, 512, "bf16")
    scores = 4 * 12 * 512 * 512
    assert work["projections"].flops == 4 * 2 * 2048 * 768 * 768
    assert work["projections"].bytes == 4 * 2 * (2048 * 768 + 768 * 768 + 2048 * 768)
    assert work["SwiGLU matmuls"].flops == 3 * 2 * 2048 * 768 * 3072
    assert work["attention matmuls"].flops == 2 * 2 * scores * 64
    assert work["attention matmuls"].bytes == 2 * (3 * 2048 * 768 + scores) + 2 * (2048 * 768 + scores)
    assert work["softmax"].bytes == (4 + 4) * scores  # read and written in fp32 in both precisions
    # The copy and the mask read and write two bytes, the cast reads two and writes four.
    assert work["mask and cast"].bytes == (2 + 2 + 2 + 2 + 2 + 4) * scores
    assert plain_block(parse_size("small"), 4, 512, "fp32")["mask and cast"].bytes == 4 * 4 * scores
