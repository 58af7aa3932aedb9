"""Record the memory of one step of a Transformer language model, allocation by allocation.

Launch: python -m cs336_systems.benchmarks memory_profile --size small --context 512 --mode inference forward train_step
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

import torch

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.end_to_end import build_step
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure.memory_history import code_at, owners_of_training, record_step, require_history
from cs336_systems.measure.memory_recording import Recording
from cs336_systems.measure.memory_timeline import FORWARD, Timeline, largest_groups, replay, sample_positions
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep

LARGEST = 12


def measure(cell: MemoryProfile, device: torch.device) -> list[Measurement]:
    """Measure the memory timeline of a warmed-up step: peak and its parts, stages, and the largest allocations."""
    require_history(device)
    recording = record(build_step(EndToEnd(**asdict(cell)), device), cell.mode, device)
    timeline = replay(recording)
    residual = residual_bytes(parse_size(cell.size), cell.batch_size, cell.context)
    return [
        summarize("peak_allocated", "B", [recording.peak]),
        *peak_rows(timeline),
        *stage_rows(timeline),
        *timeline_rows(timeline),
        *allocation_rows(timeline),
        *residual_rows(timeline, residual),
    ]


def warm_up(step: TrainingStep, mode: str) -> None:
    """Run a step, which creates the optimizer state and workspaces, and release gradients and graph.

    The next step starts as in a loop that has just called zero_grad, with neither gradients nor a graph in memory.
    """
    for stage in step.stages(mode).values():
        stage()
    step.loss = step.logits = None
    step.model.zero_grad(set_to_none=True)


def record(step: TrainingStep, mode: str, device: torch.device) -> Recording:
    """Record one step, after a warm-up step."""
    warm_up(step, mode)
    return record_step(
        step.stages(mode),
        lambda: owners_of_training(step.model, step.optimizer, [step.inputs, step.logits, step.loss]),
        step.model.parameters(),
        device,
    )


def peak_rows(timeline: Timeline) -> Iterator[Measurement]:
    """Make rows of the replayed peak, its stage and its parts, and of each category's maximum."""
    totals = timeline.totals()
    peak = max(range(len(totals)), key=totals.__getitem__)
    (parts,) = timeline.levels_at([peak])
    most: Counter[str] = Counter()
    for level in timeline.levels():
        most |= Counter(level)
    (stage,) = [name for name, first, last in timeline.stages if first <= peak <= last]
    yield summarize("peak_replayed", "B", [totals[peak]])
    yield Measurement(metric="peak_stage", unit="stage", n=1, value=stage)
    for category in most:
        yield summarize("at_peak", "B", [parts[category]], details={"category": category})
        yield summarize("most", "B", [most[category]], details={"category": category})


def stage_rows(timeline: Timeline) -> Iterator[Measurement]:
    """Make rows of each stage: peak memory, allocations and frees, and memory by category at its end."""
    totals = timeline.totals()
    for name, first, last in timeline.stages:
        details = {"stage": name}
        yield summarize("stage_peak", "B", [max(totals[min(first, last) : last + 1])], details=details)
        yield summarize("stage_events", "", [last - max(first, 1) + 1], details=details)
        (level,) = timeline.levels_at([last])
        for category, size in level.items():
            if size:
                yield summarize("stage_end", "B", [size], details=details | {"category": category})


def timeline_rows(timeline: Timeline) -> Iterator[Measurement]:
    """Make rows of the timeline by stage and category, as samples in the order of time."""
    for stage, positions in sample_positions(timeline).items():
        levels = timeline.levels_at(positions)
        for category in levels[0]:
            samples = [level[category] / MIB for level in levels]
            if any(samples):
                yield summarize("active", "MiB", samples, details={"stage": stage, "category": category})


def allocation_rows(timeline: Timeline) -> Iterator[Measurement]:
    """Make rows of the step's largest allocations, with lifetimes of the allocations freed in it."""
    for rank, group in enumerate(largest_groups(timeline, LARGEST), start=1):
        of = group[0]
        details = {name: getattr(of, name) for name in ("stage", "category", "freed", "operator", "source")}
        details |= {"code": code_at(of.source), "rank": str(rank)}
        lifetimes = [each.milliseconds for each in group if each.milliseconds is not None]
        yield summarize("allocation", "B", [each.requested for each in group], keep=False, details=details)
        if lifetimes:
            yield summarize("lifetime", "ms", lifetimes, keep=False, details=details)


def residual_rows(timeline: Timeline, size: int) -> Iterator[Measurement]:
    """Count the forward pass's allocations of the residual stream's size, by operator and source line."""
    counts = Counter(
        (each.operator, each.source) for each in timeline.made() if each.stage == FORWARD and each.requested == size
    )
    for (operator, source), count in counts.items():
        details = {"stage": FORWARD, "operator": operator, "source": source, "code": code_at(source)}
        yield summarize("residual_tensors", "", [count], details=details)
