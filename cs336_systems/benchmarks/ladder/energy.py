"""The energy of a step on a GPU, by the driver's counter."""

import math
from collections.abc import Callable

import pynvml
import torch

from cs336_systems.measure.timing import synchronize
from cs336_systems.record.measurement import Measurement, summarize

SECONDS = 0.7
"""Least time over which energy is counted: the driver renews its counter every few hundredths of a second."""


def step_energy(step: Callable[[], None], milliseconds: float, device: torch.device) -> Measurement:
    """Run a step of a known time over and over, and measure joules per step.

    The driver's counter of joules, unlike its reading of the power, which Hopper averages over a second, does not
    remember what ran before.
    """
    if device.type != "cuda":
        return _unknown("only a GPU counts the energy that it takes")
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        steps = math.ceil(1e3 * SECONDS / milliseconds)
        synchronize(device)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        for _ in range(steps):
            step()
        synchronize(device)
        millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before
        return summarize("energy", "J", [millijoules / 1e3 / steps])
    except pynvml.NVMLError as error:
        return _unknown(f"the driver does not count energy: {error}")
    finally:
        pynvml.nvmlShutdown()


def _unknown(why: str) -> Measurement:
    return Measurement(metric="energy", unit="J", status="skipped", message=why)
