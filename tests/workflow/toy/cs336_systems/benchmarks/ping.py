"""Time an all-reduce between processes.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks ping
"""

import torch
import torch.distributed as dist
from cs336_systems.experiments.ping import Ping

from cs336_systems.measure.timing import time_phases
from cs336_systems.record.measurement import Measurement, summarize


def measure(cell: Ping, device: torch.device) -> list[Measurement]:
    """Time of an all-reduce, and what it sums ones to."""
    numbers = torch.ones(cell.numbers, device=device)

    def all_reduce() -> None:
        if cell.processes > 1:
            dist.all_reduce(numbers)

    all_reduce()
    total = numbers[0].item()
    _, seconds = time_phases({"all_reduce": all_reduce}, warmup=2, steps=cell.steps, device=device)
    return [summarize("all_reduce", "ms", [1e3 * lap for lap in seconds["all_reduce"]]), summarize("sum", "", [total])]
