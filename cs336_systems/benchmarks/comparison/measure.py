"""The measurement of any experiment whose contenders train on several ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from cs336_systems.benchmarks.comparison.agreement import available_on_all_ranks, quick_collections, together
from cs336_systems.benchmarks.comparison.builders.own import own_contenders
from cs336_systems.benchmarks.comparison.contender_runs import ContenderRuns
from cs336_systems.benchmarks.comparison.originals import left_alone, originals, restore
from cs336_systems.benchmarks.comparison.turns import summarize_turns, take_turns
from cs336_systems.experiments.contender import Declared
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.measure.memory import Unavailable
from cs336_systems.record.measurement import Measurement, skipped

ON_CUDA = {
    "device_busy": "on a CPU, an operator has finished when its call returns",
    "allocated": "PyTorch does not count memory in use on a CPU",
    "peak_memory": "PyTorch does not count peak memory on a CPU",
}
"""Metrics that are not measured on a CPU, and the reason."""

T = TypeVar("T")
originals()  # before any code under test is imported


def measure(cell: Any, device: torch.device) -> list[Measurement]:
    """Measure steps of all contenders, interleaved; then, one by one, their phases, memory and profiles.

    Raises:
        Unavailable: no contender could be measured.
    """
    contenders = contenders_of(cell)
    if any(contender.own for contender in contenders):
        restore()  # what their modules replaced at import
    runs = ContenderRuns(cell, device)
    with quick_collections(), together():
        turns, refused = take_turns(contenders, cell.rounds, agreed(runs.check), agreed(runs.turn))
        inspected, not_inspected = take_turns(turns, 1, lambda _: None, agreed(runs.inspect))
    refused |= not_inspected
    if not inspected:
        raise Unavailable(next(iter(refused.values())))
    baseline = next((taken for contender, taken in turns.items() if contender.name == BASELINE), [])
    rows = [
        row
        for contender, (of_inspection,) in inspected.items()
        for row in (
            *summarize_turns(turns[contender], baseline, type(cell), device, runs.details(contender)),
            *of_inspection,
        )
    ]
    if device.type != "cuda":
        rows += [skipped(metric, unit, ON_CUDA[metric]) for metric, unit in cell.metrics.items() if metric in ON_CUDA]
    lost = [skipped("step", "ms", why, runs.details(contender)) for contender, why in refused.items()]
    return [*rows, *lost]


def contenders_of(cell: Any) -> list[Declared]:
    """List the contenders of a cell."""
    return [*cell.contenders, *own_contenders(cell)]


def agreed(attempt: Callable[[Declared], T]) -> Callable[[Declared], T]:
    """Run an attempt with a contender; if a user's contender raises, all ranks continue without it."""

    def attempted(contender: Declared) -> T:
        if not contender.own:
            return attempt(contender)
        with left_alone():
            return available_on_all_ranks(lambda: attempt(contender), own=True)

    return attempted
