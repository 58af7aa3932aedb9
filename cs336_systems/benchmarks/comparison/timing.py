"""Times of steps, of their phases, and of the host issuing them; steps can be replayed from CUDA graphs.

An eager step may be host-bound; its phases, with the device idle in between, then add up to more than the step. The
phases of a replayed graph are measured by events inside the graph, in the timed step itself.
"""

import itertools
from collections.abc import Callable, Mapping
from time import perf_counter

import torch
from torch.distributed import barrier

from cs336_systems.benchmarks.comparison.agreement import available_on_all_ranks
from cs336_systems.benchmarks.comparison.training import Phases, Training, run
from cs336_systems.benchmarks.ranks import slowest
from cs336_systems.experiments.data_parallel import HOST_STEPS, PHASE_STEPS
from cs336_systems.measure.memory import Unavailable
from cs336_systems.measure.timing import Stopwatch, no_garbage_collection, synchronize
from cs336_systems.record.measurement import Measurement, skipped, summarize
from cs336_systems.training.cuda_graph import capture


def captured(phases: Phases, calls: int) -> Phases:
    """Capture the phases of a step, after some calls, as a single phase that replays a CUDA graph in this stream."""
    for _ in range(calls):
        run(phases)
    graph, _ = capture(torch.cuda.current_stream(), lambda: run(phases))
    return {"step": graph.replay}


def nothing() -> None:
    """Do nothing."""


@no_garbage_collection()
def time_steps(
    phases: Phases,
    device: torch.device,
    *,
    warmup: int,
    steps: int,
    before: Callable[[], None] = nothing,
    after: Callable[[], None] = nothing,
) -> list[float]:
    """Time steps on this rank, in seconds, after some warm-up; all ranks start a step together.

    `before` and `after` are called around each timed step, outside the timed region.
    """
    for _ in range(warmup):
        run(phases)
    seconds = []
    for _ in range(steps):
        before()
        synchronize(device)
        barrier()
        stopwatch = Stopwatch(device)
        run(phases)
        seconds.append(stopwatch.lap())
        after()
    return seconds


def phase_rows(
    training: Training,
    device: torch.device,
    details: Mapping[str, str],
    *,
    replays: bool,
) -> list[Measurement]:
    """Make rows of each phase's time on the slowest rank, or why it is unknown if a step cannot be captured."""
    phases = training.phases
    try:
        seconds = time_replayed_phases(training, device) if replays else time_phases(phases, device)
    except Unavailable as error:
        return [skipped(name, "ms", str(error), details) for name in phases]
    return [
        summarize(name, "ms", [1e3 * lap for lap in slowest(laps, device)], details=details)
        for name, laps in seconds.items()
    ]


@no_garbage_collection()
def time_phases(phases: Phases, device: torch.device) -> dict[str, list[float]]:
    """Time each phase of some steps on this rank, in seconds; all ranks start a step together.

    A phase ends when the device has done the work on the current stream. Communication on other streams continues.
    """
    seconds: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(PHASE_STEPS):
        synchronize(device)
        barrier()
        for name, phase in phases.items():
            start = perf_counter()
            phase()
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            seconds[name].append(perf_counter() - start)
    return seconds


@no_garbage_collection()
def time_replayed_phases(training: Training, device: torch.device) -> dict[str, list[float]]:
    """Time each phase of a replayed step with events inside its graph; Unavailable if it cannot be captured."""
    phases = training.phases
    # External: nodes of the graph, recorded again in each replay. Other events only order the capture.
    moments = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(len(phases) + 1)]
    marked: dict[str, Callable[[], None]] = {"begin": moments[0].record}
    for (name, phase), end in zip(phases.items(), moments[1:], strict=True):
        marked |= {name: phase, f"{name} ends": end.record}
    replay = available_on_all_ranks(lambda: captured(marked, training.calls_before_capture), own=True)
    seconds: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(PHASE_STEPS):
        synchronize(device)
        barrier()
        run(replay)
        synchronize(device)
        for name, (begin, end) in zip(phases, itertools.pairwise(moments), strict=True):
            seconds[name].append(begin.elapsed_time(end) / 1e3)
    return seconds


@no_garbage_collection()
def host_row(phases: Phases, device: torch.device, details: Mapping[str, str]) -> Measurement:
    """Time how long this rank's host takes to issue a step, without waiting for the initially idle device.

    If the device falls behind by more launches than its queue holds (about a thousand), the host still waits.
    """
    samples = []
    for _ in range(HOST_STEPS):
        synchronize(device)
        barrier()
        start = perf_counter()
        run(phases)
        samples.append(1e3 * (perf_counter() - start))
    synchronize(device)
    return summarize("host", "ms", samples, details=details)
