"""The device's work in a call, counted from a trace, between two marks on the timed stream."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from cs336_systems.benchmarks.comparison import device_clock
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.profiler import events_of, profiling
from cs336_systems.measure.timing import synchronize

MARK = "spin_kernel"
"""Part of the name of the kernel that marks the beginning and end of the call."""
CLOCK_NS = 1000
"""Nanoseconds by which times of two streams may be off."""


class Traced(NamedTuple):
    """The kernels, copies and fills of a call."""

    kernels: int
    seconds: float
    """Time during which at least one of them ran."""
    outside: int
    """How many of them ran at least partly before the call's stream was ready or after it was done."""


class Ran(NamedTuple):
    """A kernel, copy or fill."""

    name: str
    stream: int
    start: int
    end: int


def trace(work: Callable[[], object], device: torch.device) -> Traced | None:
    """Trace a call on a CUDA device; None if the profiler records nothing."""
    device_clock.flush_l2(device)
    synchronize(device)
    with profiling(device, operators=False) as watching:
        device_clock.spin(1)
        work()
        device_clock.spin(1)
    return count(
        [
            Ran(event.name(), event.device_resource_id(), event.start_ns(), event.end_ns())
            for event in events_of(watching)
        ]
    )


def count(ran: Sequence[Ran]) -> Traced | None:
    """Count what ran between the first mark and the last one on its stream; None if there is no mark."""
    marks = sorted((kernel for kernel in ran if MARK in kernel.name), key=lambda mark: mark.start)
    if not marks:
        return None
    begin, *_ = on_stream = [mark for mark in marks if mark.stream == marks[0].stream]
    end = on_stream[-1]
    work = [kernel for kernel in ran if kernel not in (begin, end)]
    outside = sum(kernel.start < begin.end - CLOCK_NS or kernel.end > end.start + CLOCK_NS for kernel in work)
    return Traced(len(work), covered((kernel.start, kernel.end) for kernel in work) / 1e9, outside)
