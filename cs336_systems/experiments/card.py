"""Parameters of the card: short measurements that show whether a GPU, or a CPU, is all right."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment, Positive


@dataclass(frozen=True, kw_only=True)
class Card(Experiment):
    """Measure the rates that each GPU reaches, and the state that its driver reports at the same time."""

    name: ClassVar[str] = "card"
    on_request: ClassVar[bool] = True
    """It is not part of the report: measured only by `snakemake card`."""
    details: ClassVar[tuple[str, ...]] = ("device", "work", "about")

    instrument: Literal["facts", "matmul", "memory", "attention", "launches", "training", "transfers", "all_reduce"] = (
        "facts"
    )
    """facts: limits, modes and error counters that the driver reports. matmul: the models' shapes in each precision.
    memory: copies, reads and writes too large for the caches. attention: forward and backward, with each library.
    launches: empty kernels, from the host and in a CUDA graph. training: the ladder's captured step. transfers: between
    host and device. all_reduce: between each pair of GPUs; on a CPU, between two threads."""
    milliseconds: Positive = 500
    """Minimum time for which each workload is repeated, in ms."""
