"""Add 0.01 many times, in several precisions.

Launch: python -m cs336_systems.benchmarks accumulation --accumulator fp32 fp16 --addend fp32 fp16
"""

import torch

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.record.measurement import Measurement, summarize

ADDEND = 0.01


def measure(cell: Accumulation, device: torch.device) -> list[Measurement]:
    """Measure the final sum, its error relative to the exact sum, and the increase by the last addition."""
    accumulator = torch.tensor(0.0, dtype=DTYPES[cell.accumulator], device=device)
    addend = torch.tensor(ADDEND, dtype=DTYPES[cell.addend], device=device)
    before = accumulator.clone()
    for _ in range(cell.additions):
        before.copy_(accumulator)
        accumulator += addend.to(accumulator.dtype) if cell.cast else addend
    total, exact = accumulator.item(), ADDEND * cell.additions
    return [
        summarize("sum", "", [total]),
        summarize("relative_error", "", [abs(total - exact) / exact]),
        summarize("rounded_addend", "", [addend.item()]),
        summarize("last_step", "", [total - before.item()]),
    ]
