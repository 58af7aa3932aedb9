"""Inputs are random, so that nobody can know them; for none of them may rounding look like a mistake."""

import pytest
import torch

from cs336_systems.verify.cases import BF16_WAY, CASES, off_the_way, trained_alone

BF16 = next(case for case in CASES["fsdp"] if case.header["compute_dtype"])


@pytest.mark.parametrize("seed", [45, 218, 235, *range(17)])  # with ReLU, the first three exceed the whole tolerance
def test_rounding_to_bf16_stays_far_below_the_tolerance(seed):
    given = BF16.give(BF16, torch.Generator().manual_seed(seed))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = trained_alone(BF16, given)
    assert off_the_way(rounded.end, trained_alone(BF16, given), 0.0, "there")  # it is rounded
    assert not off_the_way(rounded.end, trained_alone(BF16, given), BF16_WAY / 2, "there")
