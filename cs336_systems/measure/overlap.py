"""How much of a device's communication runs beside computation, from the events that a profiler saw. No torch here."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs336_systems.measure.intervals import covered, merge

COMPUTE, COMMUNICATION, OPTIMIZER = "compute", "communication", "optimizer"

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class DeviceEvent:
    """A kernel, copy or fill that ran on a device."""

    name: str
    """Its full name."""
    stream: int
    """The stream that it ran on."""
    start: float
    """When it began, in any unit."""
    end: float
    """When it ended."""


def by_kind(events: Sequence[DeviceEvent]) -> dict[str, list[Interval]]:
    """When a device computes, communicates and runs the optimizer: disjoint intervals of each.

    The step computes on one stream. All that runs on others is communication, whether a library's kernel, a copy, or
    an addition to what was copied; so is, on any stream, a kernel of NCCL.
    """
    own = busiest_stream(events)
    found: dict[str, list[Interval]] = {COMPUTE: [], COMMUNICATION: [], OPTIMIZER: []}
    for event in events:
        communicates = event.stream != own or is_nccls(event)
        kind = COMMUNICATION if communicates else OPTIMIZER if "adam" in event.name.lower() else COMPUTE
        found[kind].append((event.start, event.end))
    return {kind: merge(intervals) for kind, intervals in found.items()}


def busiest_stream(events: Iterable[DeviceEvent]) -> int | None:
    """The stream that works longest, NCCL's kernels aside, or None if there are only such."""
    times: defaultdict[int, float] = defaultdict(float)
    for event in events:
        if not is_nccls(event):
            times[event.stream] += event.end - event.start
    return max(times, key=times.__getitem__, default=None)


def is_nccls(event: DeviceEvent) -> bool:
    """Whether NCCL has launched it."""
    return "nccl" in event.name.lower()


def overlap(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """The length of time that both cover."""
    first, second = list(first), list(second)
    return covered(first) + covered(second) - covered(first + second)


def shares(intervals: Iterable[Interval], start: float, end: float, parts: int) -> list[float]:
    """What share of each of the equal parts of a stretch of time is covered.

    >>> shares([(0, 3), (5, 5.5)], start=0, end=6, parts=3)
    [1.0, 0.5, 0.25]
    """
    length = (end - start) / parts
    filled = [0.0] * parts
    for left, right in merge(intervals):
        left, right = max(left, start), min(right, end)
        if left >= right:
            continue
        last = min(int((right - start) / length), parts - 1)
        for part in range(int((left - start) / length), last + 1):
            begins = start + part * length
            filled[part] += max(0.0, min(right, begins + length) - max(left, begins))
    return [min(each / length, 1.0) for each in filled]
