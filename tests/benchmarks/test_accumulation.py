"""Sums in several precisions, against NumPy's."""

import numpy
import pytest
import torch

from cs336_systems.benchmarks import accumulation
from cs336_systems.experiments.accumulation import Accumulation

CPU = torch.device("cpu")


def round_to(value, precision):
    """A float32 rounded to a precision by NumPy; bf16, which it lacks, by rounding half of the bits to even."""
    value = numpy.float32(value)
    if precision == "fp16":
        return numpy.float32(numpy.float16(value))
    if precision == "bf16":
        bits = value.view(numpy.uint32)
        rounded = (bits + numpy.uint32(0x7FFF) + ((bits >> 16) & 1)) & numpy.uint32(0xFFFF0000)
        return rounded.view(numpy.float32)
    return value


@pytest.mark.parametrize("additions", [9, 1000])  # after 9 a cast shows in bf16, which later stalls either way
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("addend", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("accumulator", ["fp32", "fp16", "bf16"])
def test_sums_are_numpys(accumulator, addend, cast, additions):
    cell = Accumulation(accumulator=accumulator, addend=addend, cast=cast, additions=additions)
    metrics = {measurement.metric: measurement.mean for measurement in accumulation.measure(cell, CPU)}
    term = round_to(0.01, addend)
    assert metrics["rounded_addend"] == term
    total = numpy.float32(0)
    for _ in range(additions):
        before = total
        total = round_to(total + (round_to(term, accumulator) if cast else term), accumulator)
    assert metrics["sum"] == total
    assert metrics["last_step"] == float(total) - float(before)
    assert metrics["relative_error"] == pytest.approx(
        abs(float(total) - 0.01 * additions) / (0.01 * additions), rel=1e-9
    )
