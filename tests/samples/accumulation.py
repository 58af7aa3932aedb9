"""The real measurement, which takes no time worth making up."""

import torch

from cs336_systems.benchmarks import accumulation
from cs336_systems.experiments.base import Experiment
from cs336_systems.record.measurement import Measurement


def measure(cell: Experiment, *, on_gpu: bool) -> list[Measurement]:
    """Measured on this machine's processor."""
    return accumulation.measure(cell, torch.device("cpu"))
