"""What a device does during one step: computation and communication, and how much of them at the same time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from cs336_systems.experiments.data_parallel import TIMELINE_PARTS
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, by_kind, overlap, shares
from cs336_systems.measure.profiler import profiling
from cs336_systems.measure.timing import synchronize

LAUNCHES = tuple(
    f"{library}{call}"
    for library in ("cuda", "cu")
    for call in ("LaunchKernel", "LaunchCooperative", "Memcpy", "Memset", "GraphLaunch")
)
"""What the names of the host's calls begin with that have a device do something."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One step of this rank."""

    events: list[DeviceEvent]
    """What ran on the device, in milliseconds from the step's start."""
    milliseconds: float
    """How long the step took."""
    launches: int
    """Kernels, copies, fills and graphs that the host launched."""


def profile_rows(profile: Profile, details: Mapping[str, str], *, apart: Sequence[str] = ()) -> list[Measurement]:
    """What a CUDA device does in a step.

    Args:
        profile: the step's.
        details: what tells the rows apart.
        apart: collectives that are also told by themselves.
    """
    found = by_kind(profile.events, apart)
    computing = found[COMPUTE] + found[OPTIMIZER]
    sending = {kind: found[kind] for kind in apart}
    sending[""] = [interval for kind in (COMMUNICATION, *apart) for interval in found[kind]]
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
    for kind, intervals in found.items():
        parts = shares(intervals, 0, profile.milliseconds, TIMELINE_PARTS)
        rows.append(summarize("timeline", "share", parts, details={**details, "kind": kind}))
    return rows


def profile_step(phases: Mapping[str, Callable[[], None]], device: torch.device) -> Profile:
    """One more step on a CUDA device. All ranks run it with the profiler: none waits for the others."""
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
    during = [event for event in results.events() if start < event.end_ns() <= end]
    events = [
        DeviceEvent(name=event.name(), start=(event.start_ns() - start) / 1e6, end=(event.end_ns() - start) / 1e6)
        for event in during
        if event.device_type().name == "CUDA"
    ]
    launched = sum(event.device_type().name == "CPU" and event.name().startswith(LAUNCHES) for event in during)
    # Without the host's calls in the profile, those of a step that is launched call by call are what the device ran.
    return Profile(events=events, milliseconds=(end - start) / 1e6, launches=launched or len(events))
