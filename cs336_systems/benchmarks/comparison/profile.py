"""Profile of one step on a device: compute, communication, and their overlap."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from cs336_systems.experiments.data_parallel import TIMELINE_PARTS
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, by_kind, overlap, shares
from cs336_systems.measure.profiler import events_of, profiling
from cs336_systems.measure.timing import synchronize
from cs336_systems.record.measurement import Measurement, summarize

LAUNCHES = tuple(
    f"{library}{call}"
    for library in ("cuda", "cu")
    for call in ("LaunchKernel", "LaunchCooperative", "Memcpy", "Memset", "GraphLaunch")
)
"""Prefixes of the host's calls that launch work on a device."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of one step of this rank."""

    events: list[DeviceEvent]
    """Events of the device, in milliseconds from the step's start."""
    milliseconds: float
    launches: int
    """Kernels, copies, fills and graphs that the host launched."""


def profile_rows(profile: Profile, details: Mapping[str, str], *, apart: Sequence[str] = ()) -> list[Measurement]:
    """Make the rows of a profiled step on a CUDA device; collectives in `apart` also get separate rows."""
    by_kinds = by_kind(profile.events, apart)
    computing = by_kinds[COMPUTE] + by_kinds[OPTIMIZER]
    sending = {kind: by_kinds[kind] for kind in apart}
    sending[""] = [interval for kind in (COMMUNICATION, *apart) for interval in by_kinds[kind]]
    times = {
        "device_busy": covered(computing + sending[""]),
        "compute": covered(computing),
        "timeline_length": profile.milliseconds,
    }
    rows = [summarize(metric, "ms", [value], details=details) for metric, value in times.items()]
    for kind, intervals in sending.items():
        named = {**details, **({"kind": kind} if kind else {})}
        rows.append(summarize("communication", "ms", [covered(intervals)], details=named))
        rows.append(summarize("hidden", "ms", [overlap(computing, intervals)], details=named))
    for kind, intervals in by_kinds.items():
        parts = shares(intervals, 0, profile.milliseconds, TIMELINE_PARTS)
        rows.append(summarize("timeline", "share", parts, details={**details, "kind": kind}))
    return rows


def median_profile(phases: Mapping[str, Callable[[], None]], device: torch.device, steps: int) -> Profile:
    """Profile some more steps on a CUDA device, each alone, and return the profile with the median duration."""
    profiles = [profile_step(phases, device) for _ in range(steps)]
    return sorted(profiles, key=lambda profile: profile.milliseconds)[steps // 2]


def profile_step(phases: Mapping[str, Callable[[], None]], device: torch.device) -> Profile:
    """Profile one more step on a CUDA device. All ranks run it with the profiler, so that none waits for the others."""
    with profiling(device, operators=False) as watching:
        dist.barrier()
        synchronize(device)
        start = time.time_ns()
        for phase in phases.values():
            phase()
        synchronize(device)
        end = time.time_ns()
    events = [
        DeviceEvent(name=event.name(), start=(event.start_ns() - start) / 1e6, end=(event.end_ns() - start) / 1e6)
        for event in events_of(watching)
        if start < event.end_ns() <= end
    ]
    of_host = (event for event in events_of(watching, "CPU") if start < event.end_ns() <= end)
    launched = sum(event.name().startswith(LAUNCHES) for event in of_host)
    # If the profile lacks the host's calls, the launches of an eager step are counted from the device's events.
    return Profile(events=events, milliseconds=(end - start) / 1e6, launches=launched or len(events))
