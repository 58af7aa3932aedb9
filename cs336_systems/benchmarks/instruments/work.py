"""One workload that a card times: how it is built, repeated and counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch

from cs336_systems.benchmarks.ladder.parts_alone import captured
from cs336_systems.measure.timing import no_garbage_collection, synchronize

SAMPLE_S = 0.01
"""Minimum seconds per sample, so that the host's launches and the clock's resolution do not matter."""
GRAPH_S = 0.002
"""Seconds of work in one CUDA graph, so that the gaps between replays do not matter."""
LEAST_SAMPLES, MOST_SAMPLES = 5, 200
MOST_CALLS = 1000

Call = Callable[[], object]


class WrongResults(Exception):
    """Raised if a device computes wrong results: how many elements are wrong, and a sentence about them."""

    def __init__(self, count: int, sentence: str) -> None:
        super().__init__(sentence)
        self.count = count


@dataclass(frozen=True, kw_only=True)
class Work:
    """One thing to time."""

    name: str
    metric: str
    amount: float
    """The work of one call: TFLOP, GB, launches or tokens."""
    build: Callable[[torch.device], Call]
    """Make the timed function. It may raise `Unavailable` or `WrongResults`, or run out of memory."""
    replayed: bool = True
    """Whether calls are replayed from CUDA graphs on a GPU, so that the host's launches do not count."""
    times: int = 1
    """Factor by which it is repeated longer than others."""
    gpus: str = ""
    """Which GPUs it runs on, if not on a single one."""


@no_garbage_collection()
def time_rates(
    work: Work, call: Call, device: torch.device, seconds: float, state: AbstractContextManager[object]
) -> list[float]:
    """Repeat the call that a workload has built, and return the rate of each sample: amounts per second.

    It is repeated for the given seconds while `state` samples; earlier calls compile and warm up.
    """
    call()
    calls, run = 1, call
    if work.replayed and device.type == "cuda":
        calls = min(max(1, round(GRAPH_S / time_once(call, device))), MOST_CALLS)
        run = captured(partial(repeat, call, calls), device)
    repeats = max(1, round(SAMPLE_S / time_once(run, device)))
    with state:
        return [work.amount * calls * repeats / lap for lap in laps(run, repeats, device, seconds * work.times)]


def repeat(call: Call, times: int) -> None:
    """Call a function the given number of times."""
    for _ in range(times):
        call()


def time_once(run: Call, device: torch.device) -> float:
    """Time the second of two calls, in seconds."""
    run()
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return max(time.perf_counter() - start, 1e-7)


def laps(run: Call, repeats: int, device: torch.device, seconds: float) -> Iterator[float]:
    """Time groups of calls until the given seconds have passed, in seconds."""
    begin = time.perf_counter()
    for number in range(MOST_SAMPLES):
        start = time.perf_counter()
        if number >= LEAST_SAMPLES and start - begin > seconds:
            return
        repeat(run, repeats)
        synchronize(device)
        yield time.perf_counter() - start
