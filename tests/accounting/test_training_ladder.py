"""Closed forms of the training ladder, against numbers from elsewhere and counts of a real step."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.accounting.training_ladder import (
    MFU_CONVENTIONS,
    Rates,
    expected_gains,
    load_of,
    matmul_flops,
    pass_bytes,
    products,
    step_flops,
    update_bytes,
)
from cs336_systems.model import build_model
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep

OURS = load_of("2.7B", 4, 1024, 10_000)


def test_flops_are_those_of_a_step_that_was_timed_elsewhere():
    # A prototype's 170.9 ms are 50.4 % of 989 TFLOP/s, and its 641.9 ms at 8 x 2048 are 55.0 %.
    assert step_flops(OURS) / 0.1709 / 989e12 == pytest.approx(0.504, abs=5e-4)
    assert step_flops(load_of("2.7B", 8, 2048, 10_000)) / 0.6419 / 989e12 == pytest.approx(0.550, abs=5e-4)
    eight = load_of("8Bx8:d_model=4096,d_ff=11008,num_layers=8,num_heads=32", 1, 32768, 32_000)
    assert step_flops(eight) / 0.9791 / 989e12 == pytest.approx(0.573, abs=5e-4)


def test_flops_are_those_of_the_matmuls_of_a_real_step():
    shape = parse_size("nano")
    model = build_model(
        "cs336_systems.model:TransformerLM", shape, vocab_size=50, context_length=24, device=torch.device("cpu")
    )
    step = TrainingStep(model, torch.randint(50, (3, 25)))
    with FlopCounterMode(display=False) as counted:
        step.forward()
        step.backward()
    load = load_of("nano", 3, 24, 50)
    # The counter knows nothing of masks; plain attention computes all scores.
    assert counted.get_total_flops() == step_flops(load, causal=False)
    by_product = sum(6 * load.tokens * each.d_in * each.d_out * each.count for each in products(load))
    assert by_product == matmul_flops(load)


def test_conventions_differ_by_the_embedding_and_by_half_of_the_scores():
    counts = {name: step_flops(OURS, embedding=one, causal=two) for name, (one, two) in MFU_CONVENTIONS.items()}
    least, embedded, full, most = counts.values()
    assert embedded - least == most - full == 6 * 4096 * 10_000 * 2560
    assert full - least == 3 * 4 * 1024 * 1024 * 2560 * 2 * 32
    assert least == min(counts.values())


def test_the_update_moves_what_its_tensors_hold():
    weights = 7 * 11
    read = {"gradient": torch.bfloat16, "weight": torch.bfloat16, "remainder": torch.int16}
    read |= {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    bytes_read = sum(torch.empty(weights, dtype=dtype).nbytes for dtype in read.values())
    bytes_written = bytes_read - torch.empty(weights, dtype=read["gradient"]).nbytes
    assert update_bytes(OURS) / OURS.weights == (bytes_read + bytes_written) / weights


def test_passes_of_a_block_move_its_tensors_once():
    # One token of a block with d = 4 and d_ff = 16, written out as tensors of d or d_ff bf16 numbers.
    shape = "one:d_model=4,d_ff=16,num_layers=1,num_heads=1"
    two = "two:d_model=4,d_ff=16,num_layers=2,num_heads=1"
    block = pass_bytes(load_of(two, 1, 1, 8)) - pass_bytes(load_of(shape, 1, 1, 8))
    norms = 2 * (["x", "delta", "sum", "normed", "d_sum", "d_normed", "sum", "d_x"])
    rotation = 2 * ["q in", "k in", "q out", "k out"]
    swiglu = ["gate", "up", "hidden", "gate", "up", "d_hidden", "d_gate", "d_up"]
    assert block == 2 * (4 * (len(norms) + len(rotation)) + 16 * len(swiglu))


def test_gains_are_of_the_order_that_was_measured():
    # On an H200 2.7B's casts took 14 ms, and all passes of compiled blocks 16 ms (from profiles of kernels).
    gains = expected_gains(OURS, Rates(bf16=6e14, fp32=5.1e13, copy=4.27e12))
    assert 5 < gains["masters"] < 14
    assert 16 < gains["fused"] < 60
    assert gains["overlap"] == pytest.approx(1e3 * 26 * OURS.weights / 4.27e12)
    assert min(gains.values()) > 0
