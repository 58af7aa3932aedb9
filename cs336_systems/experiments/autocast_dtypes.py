"""Parameters of the autocast experiment."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment


@dataclass(frozen=True, kw_only=True)
class AutocastDtypes(Experiment):
    """Report the dtype of every component of a toy model (Linear, ReLU, LayerNorm, Linear) under autocast."""

    name: ClassVar[str] = "autocast_dtypes"

    autocast: Literal["fp16", "bf16"] = "fp16"
    """Dtype to which autocast lowers eligible operations; the parameters stay fp32."""
