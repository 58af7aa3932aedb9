"""The report on communication and parallelism: every number is a closed form's, on every machine."""

import importlib
import math
from collections import defaultdict

from pandas import DataFrame

from cs336_systems.accounting import leaderboard
from cs336_systems.accounting.accelerators import TPU_V5P
from cs336_systems.accounting.xxl import XXL
from scripts.views.parallelism import EXAMPLE, MESH
from tests.support.tables import plain


def said(section, name):
    """An answer in bold, its table's cells behind it."""
    answer = importlib.import_module(f"scripts.answers.{section}").answers(defaultdict(DataFrame))[name]
    cells = [cell for shown in answer.evidence for row in shown.table.rows for cell in row]
    return plain(" ".join([answer.verdict, answer.more, answer.reason, *map(str, cells)]))


def spaced(number):
    """A number as readers see it."""
    return f"{number:,}".replace(",", " ")


def test_the_state_of_xxl_and_what_it_fits_on():
    state = 16 * XXL.parameters
    memory, sharded = said("communication_accounting", "memory"), said("communication_accounting", "sharded")
    assert f"State takes {state / 1e9:.0f} GB, {math.ceil(state / 80e9)} H100s of 80 GB" in memory
    assert f"each token adds {2 * 126 * (16384 + 53248) / 1e6:.1f} MB" in memory
    assert f"With 4096 tokens it is {math.ceil((state + 4096 * XXL.saved_bytes) / 80e9)} H100s" in memory

    def least(tokens):
        half = tokens * XXL.saved_bytes / 2
        return next(n for n in range(1, 999) if (state + half) / n + half < 95e9)

    assert f": {least(4096)} devices with 4096 tokens. The state alone needs {least(0)};" in sharded
    assert f"$(16 P + A \\/ 2) \\/ N + A \\/ 2$ {least(1024)} {least(4096)} none" in sharded
    most = next(tokens for tokens in range(10**5) if tokens * XXL.saved_bytes / 2 >= 95e9)
    assert f"from {spaced(most)} tokens on" in sharded


def test_the_least_batch_is_that_of_the_mesh():
    alpha = TPU_V5P.flops / TPU_V5P.bandwidth
    batch, in_turn = alpha / 8, alpha / 8 / (1 - alpha * 4 / 53248)
    text = said("communication_accounting", "batch")
    assert f"{math.ceil(batch)} tokens per device, {spaced(math.ceil(batch) * 64)} in all" in text
    assert f"take turns: {math.ceil(in_turn)} and {spaced(math.ceil(in_turn) * 64)}" in text
    for factor in (1, 4):
        best = factor * alpha**2 / (2 * 53248)
        assert f"{best:.1f} {best / batch:.2f}×" in text


def test_the_examples_limits_are_the_closed_forms():
    example = math.floor(EXAMPLE.batch_limit)
    assert f"In the example that is {example} devices" in said("data_parallel_calcs", "limit")
    forward, backward = math.floor(EXAMPLE.tensor_forward_limit), math.floor(EXAMPLE.tensor_backward_limit)
    assert f"In the example the limits are {forward} and {backward} devices" in said("tp_calcs", "limit")
    gain = EXAMPLE.mixed_limit(overlapped=True) / EXAMPLE.mixed_limit(overlapped=False)
    assert f"{gain:.2f}× fewer" in said("fsdp_tp_calcs", "limit")


def test_the_mesh_is_the_handouts():
    assert (MESH.fsdp, MESH.tensor, MESH.fsdp_axes, MESH.tensor_axes) == (16, 4, 2, 1)
    assert (TPU_V5P.flops, TPU_V5P.bandwidth, TPU_V5P.memory) == (4.6e14, 1.8e11, 95e9)


def test_the_leaderboards_step_by_hand():
    """34 blocks of 4 · 4096² + 3 · 4096 · 11008 weights; 65536 tokens, each of which sees 16384 others on average."""
    blocks, head, tokens = 34 * (4 * 4096**2 + 3 * 4096 * 11008), 151936 * 4096, 65536
    assert blocks + 2 * head + (2 * 34 + 1) * 4096 == leaderboard.PARAMETERS
    flops = leaderboard.flops_by_part()
    assert flops["projections"] == 6 * blocks * tokens
    assert flops["head"] == 6 * head * tokens
    assert flops["attention"] == 3 * 34 * 4 * tokens * 16384 * 4096
    kept = 34 * 4 * 32768 * 4096  # each block's input, in fp32
    again, whole = leaderboard.autocast_saved_bytes(1), leaderboard.autocast_saved_bytes(0)
    assert kept < again < kept + 8 * 32768 * (151936 + 3 * 4096) < whole
    assert "two B200s take 1.05 s: the record, 3.84 s, uses 27 %" in said("training_leaderboard", "time")
