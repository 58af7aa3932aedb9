"""Parameters of the all-reduce experiment."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from cs336_systems.experiments.base import Experiment, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class AllReduce(Experiment):
    """Time an all-reduce of fp32 numbers between processes."""

    name: ClassVar[str] = "all_reduce"
    timed: ClassVar[str] = "time"
    settings: ClassVar[tuple[str, ...]] = ("warmup", "steps")
    per_step: ClassVar[tuple[str, ...]] = ("time", "rank_spread", "algorithm_bandwidth", "bus_bandwidth")

    backend: Literal["gloo", "nccl"] = "gloo"
    """gloo reduces in host memory on any machine; nccl reduces between GPUs, one per process."""
    processes: Annotated[int, Ge(2)] = 2  # type: ignore[misc]  # a class variable of experiments that do not vary it
    """Number of processes."""
    megabytes: Positive = 1
    """Size of each process's contribution and result; 1 MB is 10⁶ bytes."""
    warmup: NonNegative = 5
    """All-reduces run before timing begins."""
    steps: Positive = 20
    """All-reduces timed."""
