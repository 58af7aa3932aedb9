"""Overlap of a device's communication with compute, from a profiler's events. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs336_systems.measure.intervals import Interval, covered, merge

COMPUTE, COMMUNICATION, OPTIMIZER = "compute", "communication", "optimizer"

OF_COMMUNICATION = ("nccl", "Memcpy PtoP", "symmetric_memory", "LerpFunctor")
"""Parts of the names of NCCL's kernels, copies between GPUs, barriers in symmetric memory, and averages there. No other
kernel in a training step with fused AdamW has such a name."""

ALL_GATHER, REDUCE_SCATTER = "all_gather", "reduce_scatter"
OF_COLLECTIVES = {"AllGather": ALL_GATHER, "ReduceScatter": REDUCE_SCATTER}


@dataclass(frozen=True, kw_only=True)
class DeviceEvent:
    """A kernel, copy or fill that ran on a device."""

    name: str
    start: float
    end: float


def by_kind(events: Sequence[DeviceEvent], apart: Sequence[str] = ()) -> dict[str, list[Interval]]:
    """Compute disjoint intervals in which a device computes, communicates and runs the optimizer.

    Collectives in `apart`, of those in `OF_COLLECTIVES`, count as separate kinds.
    """
    by_kinds: dict[str, list[Interval]] = {kind: [] for kind in (COMPUTE, COMMUNICATION, OPTIMIZER, *apart)}
    for event in events:
        collective = collective_of(event.name)
        kind = collective if collective in apart else kind_of(event.name)
        by_kinds[kind].append((event.start, event.end))
    return {kind: merge(intervals) for kind, intervals in by_kinds.items()}


def collective_of(name: str) -> str:
    """The collective that a kernel belongs to, if it is one of `OF_COLLECTIVES`; else nothing."""
    return next((collective for part, collective in OF_COLLECTIVES.items() if part in name), "")


def kind_of(name: str) -> str:
    """The purpose of a kernel or copy. Streams do not show it: a replayed CUDA graph has others than the capture."""
    if any(part in name for part in OF_COMMUNICATION):
        return COMMUNICATION
    return OPTIMIZER if "FusedAdam" in name else COMPUTE


def overlap(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """The total time that both sets of intervals cover."""
    first, second = list(first), list(second)
    # Rounding may give a negative value if they do not overlap.
    return max(0.0, covered(first) + covered(second) - covered(first + second))


def shares(intervals: Iterable[Interval], start: float, end: float, parts: int) -> list[float]:
    """The covered share of each of several equal parts of a period.

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
