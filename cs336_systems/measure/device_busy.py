"""Device-busy time: when at least one kernel or copy runs on a device, from PyTorch's profiler."""

import bisect
import time
from collections.abc import Callable, Mapping

import torch

from cs336_systems.measure.intervals import Interval, covered
from cs336_systems.measure.profiler import events_of, profiling
from cs336_systems.measure.timing import synchronize
from cs336_systems.record.measurement import Measurement, skipped, summarize


def device_busy(phases: Mapping[str, Callable[[], None]], device: torch.device) -> list[Measurement]:
    """Measure device-busy time of each phase of a step and of the whole step, and count its launches.

    Runs the step once more. `launches` counts kernels, copies and fills.
    """
    if device.type != "cuda":
        return [skipped("device_busy", "ms", "on a CPU, an operator has finished when its call returns")]
    activity = device_activity(phases, device)
    if not any(activity.values()):
        return [skipped("device_busy", "ms", "the profiler recorded no kernel")]
    busy = {name: 1e3 * covered(intervals) for name, intervals in activity.items()}
    return [
        *(summarize(f"{name}_busy", "ms", [milliseconds]) for name, milliseconds in busy.items()),
        summarize("device_busy", "ms", [sum(busy.values())]),
        summarize("launches", "", [sum(map(len, activity.values()))]),
    ]


def device_activity(phases: Mapping[str, Callable[[], None]], device: torch.device) -> dict[str, list[Interval]]:
    """Run the phases of a step on a CUDA device, one after another, and record the device's activity.

    For each phase, start and end of every kernel, copy and fill that it launched, in seconds since the epoch.
    """
    ends: list[int] = []
    synchronize(device)
    with profiling(device, operators=False) as watching:
        for phase in phases.values():
            phase()
            synchronize(device)
            ends.append(time.time_ns())
    activity: dict[str, list[Interval]] = {name: [] for name in phases}
    names = list(phases)
    for event in events_of(watching):
        # The device is idle between phases. The profiler's own work after the last phase counts for that phase.
        number = min(bisect.bisect(ends, event.start_ns()), len(names) - 1)
        activity[names[number]].append((event.start_ns() / 1e9, event.end_ns() / 1e9))
    return activity
