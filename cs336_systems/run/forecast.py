"""Forecast at the end of a dry run: on GPUs the cells that fit, and how long they take; on a CPU how long they take.

Memory comes from the closed forms or, without one, from the same cell on the recorded GPU. Times are the recorded
GPU's, with the timed part scaled by the ratio of the two GPUs' rates. No torch here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_systems.accounting.step_work import step_work
from cs336_systems.config import CPU
from cs336_systems.experiments.base import Experiment
from cs336_systems.fit.gpus import gpu_of_label, memory_of, rates_of
from cs336_systems.fit.planned import least_memory, size_of
from cs336_systems.fit.recorded import recorded
from cs336_systems.fit.verdict import CONTEXT, GAPS, outcome, outside
from cs336_systems.grids import BACKEND, Job, device_of
from cs336_systems.measure.gpus import Gpu, listed
from cs336_systems.plan import REFERENCE, Plan
from cs336_systems.run.progress import sources
from cs336_systems.run.taken import Taken, key_of, read_taken

GB = 1e9
ROWS = Path("recorded", REFERENCE, "raw")
FITS, PARTLY, TOO_LARGE, UNKNOWN, MORE_GPUS = "fit", "partly", "too large", "?", "more GPUs"
OUTCOMES = (FITS, PARTLY, TOO_LARGE, UNKNOWN, MORE_GPUS)
HEADER = ("experiment", *OUTCOMES, "minutes", "cells that are too large")
LEGEND = """Cells in the columns fit, partly and ? run.
partly: too close to call, or only some of the contenders or rungs fit
?: neither a closed form nor a recorded peak
minutes: estimated from the H200's times and both data sheets, within a factor of two; ≥: some cells were never timed"""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected time and memory of a cell."""

    cell: Experiment
    outcome: str
    """One of OUTCOMES."""
    needed: float = 0.0
    """Minimum bytes that it needs, if it is too large."""
    seconds: float | None = 0.0
    """None if its time is unknown."""


def forecast(plan: Plan, jobs: Iterable[Job]) -> str:
    """The table of some jobs of a plan for GPUs, as text; for a CPU, whose models are small, one sentence."""
    if plan.device == CPU:
        return on_cpu([cell for job in jobs if not plan.obstacle(job) for cell in job.cells], sources(plan))
    gpu = gpu_of_label(plan.machine)
    if gpu is None:
        return f"No data sheet is listed for {plan.machine}, so it is unknown what fits and how long it takes."
    title = f"{plan.gpus} x {gpu.name}, {memory_of(gpu) / GB:.1f} GB: number of cells that fit into its memory"
    return "\n".join([title, "", *_aligned([HEADER, *table(plan, gpu, jobs)]), "", LEGEND])


def on_cpu(cells: Sequence[Experiment], folders: Iterable[Path]) -> str:
    """The number of cells, and the time that they took before, in some folders of CSV files."""
    taken = read_taken(folders, {cell.name for cell in cells})
    seconds = [taken.get(key_of(cell), Taken()).wall for cell in cells]
    time = f"{'about' if all(seconds) else 'at least'} {max(1, round(sum(seconds) / 60))} min"
    return f"CPU: {len(cells)} cells, {time} on two idle cores, plus the tests of their code and the report."


def table(plan: Plan, gpu: Gpu, jobs: Iterable[Job]) -> Iterator[list[str]]:
    """A row of HEADER for each experiment of some jobs, and their total."""
    by_experiment: dict[str, list[Job]] = {}
    for job in jobs:
        by_experiment.setdefault(job.experiment, []).append(job)
    everything: list[Expected] = []
    for name, of_it in by_experiment.items():
        cells = list(expected(plan, gpu, of_it))
        everything += cells
        yield row(name, cells, [cell for job in of_it for cell in job.cells])
    yield row("total", everything, [])


def row(name: str, cells: Sequence[Expected], planned: Sequence[Experiment]) -> list[str]:
    """A row of the table: `planned` are the experiment's cells; the ones that are too large are named."""
    counts = Counter(each.outcome for each in cells)
    seconds = sum(each.seconds or 0.0 for each in cells)
    at_least = "≥ " if any(each.seconds is None for each in cells) else ""
    large = [each for each in cells if each.outcome == TOO_LARGE] if planned else []
    return [
        name,
        *(str(counts[outcome] or "") for outcome in OUTCOMES),
        f"{at_least}{seconds / 60:.0f}",
        ", ".join(too_large(large, planned)),
    ]


def too_large(cells: Sequence[Expected], planned: Sequence[Experiment]) -> Iterator[str]:
    """For each model size or sequence length, the number of cells that are too large and their minimum memory."""
    several = Counter(map(size_of, planned))
    for size, count in Counter(size_of(each.cell) for each in cells).items():
        needed = min(each.needed for each in cells if size_of(each.cell) == size)
        yield f"{size}: {count} of {several[size]} (from {needed / GB:.0f} GB)"


def expected(plan: Plan, gpu: Gpu, jobs: Iterable[Job]) -> Iterator[Expected]:
    """Forecast each cell of some jobs of one experiment."""
    jobs = list(jobs)
    taken = read_taken([ROWS], {job.experiment for job in jobs})
    for job in jobs:
        too_few = bool(plan.obstacle(job)) and not plan.too_large(job)
        on_gpus = device_of(job.cells[0], plan.device) != CPU
        for cell in job.cells:
            known = taken.get(key_of(cell), Taken())
            memory, needed = memory_outcome(cell, gpu, known) if on_gpus else (FITS, 0.0)
            if too_few or memory == TOO_LARGE:
                yield Expected(cell=cell, outcome=MORE_GPUS if too_few else TOO_LARGE, needed=needed)
            else:
                seconds = seconds_of(cell, gpu, known) if on_gpus else known.wall or None
                yield Expected(cell=cell, outcome=memory, seconds=seconds)


def memory_outcome(cell: Experiment, gpu: Gpu, known: Taken) -> tuple[str, float]:
    """Whether a cell fits into a GPU's memory, and if not, the minimum bytes that it needs."""
    capacity = memory_of(gpu)
    settings = cell.training_steps().values()
    if not settings:
        needed = known.peak + CONTEXT
        if not known.peak:
            return UNKNOWN, 0.0
        return (TOO_LARGE if needed > capacity else PARTLY if needed > (1 - GAPS) * capacity else FITS), needed
    outcomes = {outcome(setting, capacity) for setting in settings}
    if outcomes == {"does not fit"}:
        return TOO_LARGE, least_memory(settings) + min(outside(each.ranks) for each in settings)
    return FITS if outcomes == {"fits"} else PARTLY, 0.0


def seconds_of(cell: Experiment, gpu: Gpu, known: Taken) -> float | None:
    """Seconds of a cell: the recorded seconds, with the timed part scaled by the GPU's rates.

    If samples are taken until a time is up (`rep`), only a single longer sample counts.
    """
    if not known.wall:
        return None
    ratio = slower(cell, gpu)
    budget = hasattr(cell, "rep")
    more = sum(max(0.0, ratio * mean - n * mean) if budget else (ratio - 1) * n * mean for n, mean in known.timed)
    return max(0.0, known.wall + more)


def slower(cell: Any, gpu: Gpu) -> float:
    """Ratio of a cell's time to the recorded GPU's, according to the data sheets."""
    here, there = rates_of(gpu), rates_of(listed(recorded().gpu))
    if settings := cell.training_steps().values():
        weights = recorded().weights
        times = (sum(step_work(setting, rates).seconds(weights) for setting in settings) for rates in (here, there))
        return next(times) / next(times)
    if hasattr(cell, BACKEND):
        return there.link / here.link
    bf16 = getattr(cell, "precision", "bf16") == "bf16"
    flops = there.bf16 / here.bf16 if bf16 else there.fp32 / here.fp32
    return max(flops, there.bandwidth / here.bandwidth)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format rows as lines of text: the first and the last column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers, last in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells, last]).rstrip()
