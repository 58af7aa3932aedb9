"""What a device does during one step: computation and communication, and how much of them at the same time."""

import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from cs336_systems.experiments.data_parallel import TIMELINE_PARTS
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, by_kind, overlap, shares
from cs336_systems.measure.profiler import profiling
from cs336_systems.measure.timing import synchronize


def profile_step(
    phases: Mapping[str, Callable[[], None]], device: torch.device, details: Mapping[str, str]
) -> list[Measurement]:
    """What this CUDA device does in one more step. All ranks run it with the profiler: none waits for the others."""
    events, milliseconds = device_events(phases, device)
    found = by_kind(events)
    computing = [*found[COMPUTE], *found[OPTIMIZER]]
    times = {
        "device_busy": covered([*computing, *found[COMMUNICATION]]),
        "compute": covered(computing),
        "communication": covered(found[COMMUNICATION]),
        "hidden": overlap(computing, found[COMMUNICATION]),
        "timeline_length": milliseconds,
    }
    return [
        *(summarize(metric, "ms", [value], details=details) for metric, value in times.items()),
        *(
            summarize(
                "timeline",
                "share",
                shares(intervals, 0, milliseconds, TIMELINE_PARTS),
                details={**details, "kind": kind},
            )
            for kind, intervals in found.items()
        ),
    ]


def device_events(phases: Mapping[str, Callable[[], None]], device: torch.device) -> tuple[list[DeviceEvent], float]:
    """What runs on a CUDA device during a step, in milliseconds from its start, and how long the step takes."""
    with profiling(device, operators=False) as watching:
        dist.barrier()
        synchronize(device)
        start = time.time_ns()
        for phase in phases.values():
            phase()
        synchronize(device)
        end = time.time_ns()
    results = watching.profiler.kineto_results if watching.profiler else None
    assert results is not None, "the profile has ended"
    events = [
        DeviceEvent(
            name=event.name(),
            start=(event.start_ns() - start) / 1e6,
            end=(event.end_ns() - start) / 1e6,
        )
        for event in results.events()
        if event.device_type().name == "CUDA" and start < event.end_ns() <= end
    ]
    return events, (end - start) / 1e6
