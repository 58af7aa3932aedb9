"""Timing of steps on the host's clock, with the device synchronized at both ends.

Clock and synchronization are bound when this module is imported, so code under test that replaces them does not change
times.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

import torch
from torch.cuda import synchronize as synchronize_cuda


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work queued on it."""
    if device.type == "cuda":
        synchronize_cuda(device)


class Stopwatch:
    """Seconds between laps, each lap ending when the device is idle."""

    def __init__(self, device: torch.device):
        self.device = device
        synchronize(device)
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap or the start."""
        synchronize(self.device)
        now = perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a pause would inflate the step it falls into."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_garbage_collection()
def time_phases(
    phases: Mapping[str, Callable[[], None]],
    *,
    warmup: int,
    steps: int,
    device: torch.device,
) -> tuple[float, dict[str, list[float]]]:
    """Run the phases of a step one after another, step after step, and time each phase of each step.

    Returns the seconds of the warm-up, and of each phase in each timed step. Without a warm-up, the very first step is
    timed as well. The device is synchronized after every phase.
    """
    stopwatch = Stopwatch(device)
    for _ in range(warmup):
        for phase in phases.values():
            phase()
    warmup_seconds = stopwatch.lap()
    seconds: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(steps):
        for name, phase in phases.items():
            phase()
            seconds[name].append(stopwatch.lap())
    return warmup_seconds, seconds
