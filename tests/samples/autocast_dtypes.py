"""The real measurement, which takes no time worth making up, and the one dtype in which a GPU differs."""

from dataclasses import replace

import torch

from cs336_systems.benchmarks import autocast_dtypes
from cs336_systems.experiments.base import Experiment
from cs336_systems.record.measurement import Measurement


def measure(cell: Experiment, *, on_gpu: bool) -> list[Measurement]:
    """Measured on this machine's processor; on a GPU, autocast keeps the norm in fp32."""
    measured = autocast_dtypes.measure(cell, torch.device("cpu"))
    return [replace(row, value="float32") if on_gpu and row.metric == "norm_output" else row for row in measured]
