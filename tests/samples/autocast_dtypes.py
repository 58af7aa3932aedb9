"""The real measurement, which takes no time worth making up."""

import torch

from cs336_systems.benchmarks import autocast_dtypes
from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.measurement import Measurement


def measure(cell: Experiment, *, on_gpu: bool) -> list[Measurement]:
    """Measured on this machine's processor."""
    return autocast_dtypes.measure(cell, torch.device("cpu"))
