"""What a device does during one step whose weights are gathered, and in a forward pass, when for which of its units."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from cs336_systems.benchmarks.contest.profile import device_events
from cs336_systems.experiments.data_parallel import TIMELINE_PARTS
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, kind_of, overlap, shares

ALL_GATHER, REDUCE_SCATTER = "all_gather", "reduce_scatter"
OF_COLLECTIVES = {"AllGather": ALL_GATHER, "ReduceScatter": REDUCE_SCATTER}
"""Parts of the names of NCCL's kernels."""
MARK = "spin_kernel"
"""Part of the name of the kernel that `mark` launches, and that nothing else does."""


def profile_rows(
    phases: Mapping[str, Callable[[], None]], device: torch.device, details: Mapping[str, str]
) -> list[Measurement]:
    """What this CUDA device does in one more step. All ranks run it with the profiler: none waits for the others."""
    events, milliseconds = device_events(phases, device)
    kinds = [collective_kind(event.name) for event in events]
    found = {
        kind: [(event.start, event.end) for event, its_kind in zip(events, kinds, strict=True) if its_kind == kind]
        for kind in (COMPUTE, OPTIMIZER, COMMUNICATION, ALL_GATHER, REDUCE_SCATTER)
    }
    computing = found[COMPUTE] + found[OPTIMIZER]
    sending = {kind: found[kind] for kind in (ALL_GATHER, REDUCE_SCATTER)}
    sending[""] = [interval for kind in (COMMUNICATION, ALL_GATHER, REDUCE_SCATTER) for interval in found[kind]]
    times = {
        "device_busy": covered(computing + sending[""]),
        "compute": covered(computing),
        "timeline_length": milliseconds,
    }
    rows = [summarize(metric, "ms", [value], details=details) for metric, value in times.items()]
    for kind, intervals in sending.items():
        named = {**details, "kind": kind}
        rows.append(summarize("communication", "ms", [covered(intervals)], details=named))
        rows.append(summarize("hidden", "ms", [overlap(computing, intervals)], details=named))
    for kind, intervals in found.items():
        parts = shares(intervals, 0, milliseconds, TIMELINE_PARTS)
        rows.append(summarize("timeline", "share", parts, details={**details, "kind": kind}))
    return rows


def forward_rows(
    forward: Callable[[], None], units: Sequence[nn.Module], device: torch.device, details: Mapping[str, str]
) -> list[Measurement]:
    """The all-gathers of one forward pass, and when the device is ready for each unit's work, and begins it.

    Args:
        forward: the pass.
        units: the modules that are gathered by themselves. A mark on the device before and after each waits for its
            weights costs some microseconds.
        device: a CUDA device.
        details: what tells the rows apart.
    """
    hooks = [
        unit.register_forward_pre_hook(mark, prepend=first)  # the first one before the hook that waits
        for unit in units
        for first in (True, False)
    ]
    events, milliseconds = device_events({"forward": forward}, device)
    for hook in hooks:
        hook.remove()
    return describe_forward(events, milliseconds, len(units), details)


def describe_forward(
    events: Sequence[DeviceEvent], milliseconds: float, units: int, details: Mapping[str, str]
) -> list[Measurement]:
    """The rows of a forward pass; without those of each all-gather where there is not one for each unit.

    When the device is ready for the last unit, weights may already be gathered again for the backward pass.
    """
    gathers = sorted((event.start, event.end) for event in events if collective_kind(event.name) == ALL_GATHER)
    marks = sorted(event.start for event in events if MARK in event.name)
    computing = [
        (event.start, event.end) for event in events if kind_of(event.name) == COMPUTE and MARK not in event.name
    ]
    series: dict[str, list[float]] = {
        "forward_length": [milliseconds],
        "forward_gathers": [covered(gathers)],
        "forward_hidden": [overlap(computing, gathers)],
    }
    own, for_backward = gathers[:units], gathers[units:]
    if len(marks) == 2 * units and len(own) == units and all(start >= marks[-2] for start, _ in for_backward):
        series["gather_begins"] = [start for start, _ in own]
        series["gather_ends"] = [end for _, end in own]
        series["needed"], series["begins"] = marks[::2], marks[1::2]
    return [summarize(metric, "ms", samples, details=details) for metric, samples in series.items()]


def mark(*_: object) -> None:
    """Launch a kernel of a name of its own, which does nothing."""
    torch.cuda._sleep(1)


def collective_kind(name: str) -> str:
    """What a kernel or copy is for, all-gathers and reduce-scatters told apart from other communication."""
    return next((kind for part, kind in OF_COLLECTIVES.items() if part in name), None) or kind_of(name)
