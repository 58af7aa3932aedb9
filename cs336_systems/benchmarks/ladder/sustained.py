"""Times and energy of a step in steady state, once clock and power have settled.

The first steps of an idle, cooled GPU are faster than the steps of a long training run: at the power limit the clock
falls while the chip warms up, by 5 % within 15 seconds on an H100.
"""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import pynvml
import torch

from cs336_systems.benchmarks.ranks import slowest
from cs336_systems.measure.timing import time_phases
from cs336_systems.nvidia import uuid

WINDOW_S = 2.5
"""Length in seconds of the windows whose medians are compared. The driver updates its energy counter many times in
it."""
SETTLED = 0.004
"""Maximum difference between the medians of consecutive windows in steady state."""
MOST_WINDOWS = 8
FIRST_STEPS = 9
MOST_LAPS = 40
"""Number of steps of a turn whose times are kept: the last ones."""


class Turn(NamedTuple):
    """A rung's turn."""

    laps: list[float]
    """Times of its last steps, in seconds."""
    first: list[float]
    """Times of its first steps, in seconds; none on a CPU."""
    joules: float
    """Energy of one of its last steps on this rank's GPU; NaN if it is not counted."""


def sustained_turn(step: Callable[[], None], device: torch.device) -> Turn:
    """Run a step on a GPU until its time has settled; all ranks stop after the same window."""
    first = timed(step, FIRST_STEPS, device)
    steps = math.ceil(WINDOW_S / statistics.median(first))
    laps, joules, before = first, math.nan, math.inf
    for _ in range(MOST_WINDOWS):
        joules = joules_so_far(device)
        laps = timed(step, steps, device)
        joules = (joules_so_far(device) - joules) / steps
        median = statistics.median(laps)
        if abs(median / before - 1) < SETTLED:
            break
        before = median
    return Turn(laps[-MOST_LAPS:], first, joules)


def timed(step: Callable[[], None], steps: int, device: torch.device, warmup: int = 0) -> list[float]:
    """Time steps in seconds, each on the slowest rank."""
    return slowest(time_phases({"": step}, warmup=warmup, steps=steps, device=device)[1][""], device)


def joules_so_far(device: torch.device) -> float:
    """Energy that a GPU has used since its driver was loaded, from the driver's counter; NaN if it has none.

    Unlike the driver's power reading, which Hopper averages over a second, the counter is not affected by earlier work.
    """
    try:
        pynvml.nvmlInit()
        # Not with nvml_device: a GPU partition would get the whole GPU's energy.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid(device)}")
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    except pynvml.NVMLError:
        return math.nan
