"""The experiment that takes one decision of the attention kernels back at a time."""

import dataclasses
import typing

import pytest
import torch

from cs336_systems.attention import plain_attention
from cs336_systems.attention.chip import H200
from cs336_systems.attention.tile_config import backward_tiles, forward_tiles
from cs336_systems.benchmarks import flash_ablation
from cs336_systems.experiments.flash_ablation import FlashAblation


@pytest.mark.parametrize("full_precision", [False, True])
def test_one_decision_of_the_kernels_is_taken_back_at_a_time(full_precision):
    problem = (full_precision, 64, 16 * 16384, 16384, True)
    forward, backward = forward_tiles(H200, *problem), backward_tiles(H200, *problem)
    for decision in typing.get_type_hints(FlashAblation)["without"].__args__:
        for usual, changed in (
            (forward, flash_ablation.forward_without(decision, forward)),
            (backward, flash_ablation.backward_without(decision, backward)),
        ):
            different = {
                field.name
                for field in dataclasses.fields(usual)
                if getattr(usual, field.name) != getattr(changed, field.name)
            }
            # What descriptors need goes only together with them.
            assert len(different - {"descriptors"}) <= 1
            if usual is backward and changed.descriptors:
                assert changed.preprocess
                assert changed.block_outer == changed.block_inner
            if decision in ("nothing", *flash_ablation.PRECISIONS):
                assert not different


@pytest.mark.parametrize("without", ["nothing", "bf16x6", "block_outer"])
def test_kernels_must_compute_attention(without):
    pytest.importorskip("triton")
    cell = FlashAblation(precision="fp32", without=without, sequence=70, d=8, heads=2)
    tiles = forward_tiles(H200, True, 64, 16384, 16384, True)
    changed = flash_ablation.forward_without(without, tiles)
    q, k, v, _ = inputs = flash_ablation.make_inputs(cell, torch.device("cpu"))

    def call(given, precision):
        assert (given, precision) == (changed, flash_ablation.PRECISIONS.get(without))
        return {"output": plain_attention(q, k, v, is_causal=False)}

    with pytest.raises(
        AssertionError, match=r"its output has a relative error of \S+ \(tolerance \S+\) against causal attention"
    ):
        flash_ablation._time("forward", cell, inputs, call, tiles, changed)
