"""Profile the kernels of a Transformer language model's inference and training step.

Launch: python -m cs336_systems.benchmarks kernel_profile --size small --context 512 --mode inference train_step
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cs336_systems.benchmarks.end_to_end import build_step
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.kernel_names import categorize, short_name
from cs336_systems.measure.kernel_profile import recorded_events, recording, run_steps
from cs336_systems.measure.trace import Kernel, Trace, attribute
from cs336_systems.record.measurement import Measurement, skipped, summarize
from cs336_systems.training_step import TrainingStep

SMALL = 0.001
"""Kernels below this share of the total kernel time share one row with others of their stage and range."""


def measure(cell: KernelProfile, device: torch.device) -> list[Measurement]:
    """Measure the kernels of a step, the device's busy and idle time in each stage, and the profiler's own cost."""
    step = prepare_step(cell, device)
    stages = step.stages(cell.mode)
    steps, plain = run_steps(stages, cell.steps, device)
    begin = time.perf_counter()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with recording(step.forward_model, device, path):
            steps_profiled, profiled = run_steps(stages, cell.steps, device)
        trace = attribute(recorded_events(path, device))
    seconds = time.perf_counter() - begin
    return [
        summarize("step", "ms", steps),
        summarize("step_profiled", "ms", steps_profiled),
        *by_stage("stage", plain),
        *by_stage("stage_profiled", profiled),
        *stage_rows(trace),
        *kernel_rows(trace.kernels),
        summarize("unattributed", "", [unattributed(trace.kernels)]),
        summarize("profile", "s", [seconds]),
    ]


def prepare_step(cell: KernelProfile, device: torch.device) -> TrainingStep:
    """Build the cell's step, and warm it up."""
    step = build_step(EndToEnd(**asdict(cell)), device)
    run_steps(step.stages(cell.mode), cell.warmup, device)
    return step


def by_stage(metric: str, samples: Mapping[str, Sequence[float]]) -> Iterator[Measurement]:
    """Make a row of a metric in milliseconds for each stage."""
    for stage, milliseconds in samples.items():
        yield summarize(metric, "ms", milliseconds, details={"stage": stage})


def stage_rows(trace: Trace) -> Iterator[Measurement]:
    """Make rows of each stage's device-busy time, and of idle time until its last kernel's end."""
    busy: dict[str, list[float]] = defaultdict(list)
    idle: dict[str, list[float]] = defaultdict(list)
    for stage in trace.stages:
        intervals = [(kernel.start, kernel.end) for kernel in trace.kernels if kernel.stage is stage]
        span = max((end for _, end in intervals), default=stage.start) - stage.start
        busy[stage.name].append(covered(intervals) / 1e3)
        idle[stage.name].append(max(0.0, span / 1e3 - busy[stage.name][-1]))
    yield from by_stage("stage_busy", busy)
    if trace.on_device:
        yield from by_stage("stage_idle", idle)
    else:
        yield skipped("stage_idle", "ms", "on a CPU, an operator has finished when its call returns")


def kernel_rows(kernels: Sequence[Kernel]) -> Iterator[Measurement]:
    """Make a row for each kernel of each stage and range, with the duration of every launch."""
    durations: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for kernel in kernels:
        stage = kernel.stage.name if kernel.stage else ""
        category = categorize(kernel.name, operator=kernel.operator, stage=stage, range_=kernel.range)
        durations[stage, kernel.range, category][short_name(kernel.name)].append(kernel.duration)
    least = SMALL * sum(kernel.duration for kernel in kernels)
    for (stage, range_, category), named in durations.items():
        small = [name for name, samples in named.items() if sum(samples) < least]
        if len(small) > 1 and category != "matmul":  # whose launches are counted by name
            together = [sample for name in small for sample in named.pop(name)]
            named[f"others ({len(small)} kernels)"] = together
        for name, samples in named.items():
            details = {"stage": stage, "range": range_, "category": category, "kernel": name}
            yield summarize("kernel", "us", samples, keep=False, details=details)


def unattributed(kernels: Sequence[Kernel]) -> float:
    """The share of the kernels' time whose stage or range is unknown."""
    unknown = sum(kernel.duration for kernel in kernels if not kernel.stage or not kernel.range)
    return unknown / sum(kernel.duration for kernel in kernels)
