"""The sums of `accumulation`, added up again in NumPy."""

from collections.abc import Callable, Mapping

import numpy
from pandas import Series

ADDEND = 0.01
Rounding = Callable[[numpy.float32], numpy.float32]


def to_bf16(number: numpy.float32) -> numpy.float32:
    """A number rounded to bf16, ties to even: the upper half of its bits."""
    bits = int(numpy.float32(number).view(numpy.uint32))
    return numpy.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(numpy.float32)


ROUND: Mapping[str, Rounding] = {
    "fp32": numpy.float32,
    "fp16": lambda number: numpy.float32(numpy.float16(number)),
    "bf16": to_bf16,
}


def accumulated(row: Series) -> dict[str, float]:
    """The metrics of a row's cell: each addition in fp32, which is exact enough for both dtypes, and then rounded."""
    keep = ROUND[row["accumulator"]]
    rounded = ROUND[row["addend"]](numpy.float32(ADDEND))
    added = keep(rounded) if row["cast"] else rounded
    total = before = numpy.float32(0)
    for _ in range(row["additions"]):
        before, total = total, keep(total + added)
    exact = ADDEND * row["additions"]
    return {
        "sum": float(total),
        "relative_error": abs(float(total) - exact) / exact,
        "rounded_addend": float(rounded),
        "last_step": float(total) - float(before),
    }
