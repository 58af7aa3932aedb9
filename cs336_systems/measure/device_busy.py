"""When a device works: the time in which at least one kernel or copy runs on it, from PyTorch's profiler."""

import bisect
import os
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

from cs336_systems.measure.intervals import covered
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.timing import synchronize

Interval = tuple[float, float]


def device_busy(phases: Mapping[str, Callable[[], None]], device: torch.device) -> list[Measurement]:
    """How long a device works in each phase of a step and in the whole step, and what the step launches on it.

    Runs the step once more. `launches` counts kernels, copies and fills.
    """
    if device.type != "cuda":
        message = "only a CUDA device works apart from the host, which may keep it waiting"
        return [Measurement(metric="device_busy", unit="ms", status="skipped", message=message)]
    activity = device_activity(phases, device)
    busy = {name: 1e3 * covered(intervals) for name, intervals in activity.items()}
    return [
        *(summarize(f"{name}_busy", "ms", [milliseconds]) for name, milliseconds in busy.items()),
        summarize("device_busy", "ms", [sum(busy.values())]),
        summarize("launches", "", [sum(map(len, activity.values()))]),
    ]


def device_activity(phases: Mapping[str, Callable[[], None]], device: torch.device) -> dict[str, list[Interval]]:
    """Run the phases of a step on a CUDA device, one after another, and watch the device.

    Returns:
        For each phase, start and end of every kernel, copy and fill that it launched, seconds since the epoch.
    """
    # Or CUPTI stays attached when the profile is over, and every launch after it costs the host more.
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    ends: list[int] = []
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as watching:
        for phase in phases.values():
            phase()
            synchronize(device)
            ends.append(time.time_ns())
    results = watching.profiler.kineto_results if watching.profiler else None
    assert results is not None, "the profile has ended"
    activity: dict[str, list[Interval]] = {name: [] for name in phases}
    names = list(phases)
    for event in results.events():
        if event.device_type().name == "CUDA":
            # The device is idle between phases. What the profiler itself does after the last one counts for it.
            number = min(bisect.bisect(ends, event.start_ns()), len(names) - 1)
            activity[names[number]].append((event.start_ns() / 1e9, event.end_ns() / 1e9))
    return activity
