"""Measure the rates that each GPU of a machine reaches, and the state that its driver reports meanwhile.

If a GPU fails, disappears or runs out of memory, only the workloads that fail are lost.

Launch: python -m cs336_systems.benchmarks card --instrument memory
"""

from collections.abc import Iterable

import torch

from cs336_systems.benchmarks.instruments.facts import facts
from cs336_systems.benchmarks.instruments.measuring import lost, measure_work, name_of, works_of
from cs336_systems.benchmarks.instruments.worker import Worker
from cs336_systems.experiments.card import Card
from cs336_systems.measure.memory import Unavailable
from cs336_systems.record.measurement import Measurement

WORKER = Worker()
"""The process that measures on GPUs, for all cells: starting PyTorch again takes seconds."""


def measure(cell: Card, device: torch.device) -> list[Measurement]:
    """Measure all workloads of an instrument, GPU by GPU."""
    rows = [row for each in devices(device) for row in measure_on(each, cell)]
    if not rows:
        raise Unavailable("it needs at least two GPUs")
    return rows


def devices(device: torch.device) -> list[torch.device]:
    """List all GPUs that PyTorch sees, or the CPU."""
    if device.type != "cuda":
        return [device]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def measure_on(device: torch.device, cell: Card) -> Iterable[Measurement]:
    """Measure an instrument on one GPU, in another process, or on the CPU."""
    if cell.instrument == "facts":
        try:
            return facts(device, name_of(device))
        except Exception as error:  # If the driver does not respond, only the facts are lost, not the measurements.
            return [lost("fact", error, {"device": name_of(device), "about": "all"})]
    if device.type == "cuda":
        return WORKER.measure(cell, device)
    return (row for work in works_of(cell, device) for row in measure_work(work, cell, device))
