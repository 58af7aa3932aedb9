"""Write the trace of one step, to be opened in Perfetto (ui.perfetto.dev) or Chrome (chrome://tracing).

Launch: python -m cs336_systems.artifacts.kernel_trace --size small --precision bf16 --output training_step.json.gz

Of a rung of the training ladder, which --rungs names:
python -m cs336_systems.artifacts.kernel_trace --size 2.7B --context 1024 --rungs overlap --output fastest_step.json.gz
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from cs336_systems.benchmarks.kernel_profile import prepare_step
from cs336_systems.benchmarks.ladder.steps import RungStep
from cs336_systems.benchmarks.runner import measure_or_explain
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.experiments.training_ladder import TrainingLadder, rungs_of
from cs336_systems.measure.compact_trace import NAMES, compact, write_events
from cs336_systems.measure.kernel_profile import recorded_events, recording, run_steps
from cs336_systems.measure.trace import WHOLE, Event, attribute
from cs336_systems.record.measurement import Measurement

RECORDED_STEPS = 3
"""Number of recorded steps; the last is kept: under the profiler the first launches of each kernel are
slow."""


def last_step(events: Sequence[Event]) -> list[Event]:
    """The events of the last recorded step, and those that name processes and threads."""
    stages = attribute(events).stages
    start = next(stage.start for stage in stages if stage.step == stages[-1].step)
    return [event for event in events if event["ph"] == NAMES or event["ts"] >= start]


Traced = KernelProfile | TrainingLadder


def step_of(cell: Traced, device: torch.device) -> tuple[Callable[..., object], Mapping[str, Callable[[], None]]]:
    """Build and warm up a step: the model whose modules are ranges, and the stages.

    A rung is one stage, without modules: a CUDA graph calls none, and the compiler would trace their hooks.
    """
    if isinstance(cell, KernelProfile):
        step = prepare_step(cell, device)
        return step.forward_model, step.stages(cell.mode)
    tokens = torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device)
    rung = RungStep(rungs_of(cell.rungs)[0], cell, tokens)
    rung.prepare()
    run_steps({WHOLE: rung}, cell.warmup, device)
    return nn.Module(), {WHOLE: rung}


def write_trace(cell: Traced, device: torch.device, output: Path) -> str:
    """Write the trace of one step after warm-up; returns why there is none, or an empty text.

    If the step cannot run, for example because it ran out of memory, the trace has no events and says so.
    """

    def trace(cell: Traced, device: torch.device) -> list[Measurement]:
        model, stages = step_of(cell, device)
        with TemporaryDirectory() as folder:
            recorded = Path(folder, "trace.json")
            with recording(model, device, recorded):
                run_steps(stages, RECORDED_STEPS, device)
            write_events(output, compact(last_step(recorded_events(recorded, device))))
        return []

    obstacles = measure_or_explain(trace, cell, device)
    if not obstacles:
        return ""
    write_events(output, [], obstacles[0].message)
    return obstacles[0].message


if __name__ == "__main__":
    from cs336_systems.artifacts.one_step import parse_step

    kind: Any = TrainingLadder if "--rungs" in sys.argv else KernelProfile
    described, target, options = parse_step("kernel_trace", kind, sys.argv[1:])
    if message := write_trace(described, target, options.output):
        print(f"kernel_trace: no step was traced: {message}", file=sys.stderr)
