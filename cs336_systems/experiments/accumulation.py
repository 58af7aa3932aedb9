"""Parameters of the mixed-precision accumulation experiment."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment, Positive


@dataclass(frozen=True, kw_only=True)
class Accumulation(Experiment):
    """Add 0.01 many times, with accumulator and addend in different precisions."""

    name: ClassVar[str] = "accumulation"
    settings: ClassVar[tuple[str, ...]] = ("additions",)

    accumulator: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Dtype of the running sum."""
    addend: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Dtype to which 0.01 is rounded."""
    cast: bool = False
    """Whether the addend is cast to the accumulator's dtype first; type promotion gives the same sum without the
    cast."""
    additions: Positive = 1000
    """Number of additions of 0.01."""
