"""Parameters of the plain-attention experiment."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Attention(Experiment):
    """Time attention that materializes its score matrix, and account for its memory."""

    name: ClassVar[str] = "attention"
    timed: ClassVar[str] = "forward"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "precision", "warmup", "steps")
    per_step: ClassVar[tuple[str, ...]] = ("forward", "backward")
    numeric_tests: ClassVar[tuple[str, ...]] = ("attention.test_attention",)

    sequence: Positive = 1024
    """Sequence length of queries and keys."""
    d: Positive = 64
    """Head dimension."""
    batch_size: Positive = 8
    """Sequences per batch; there is no head axis."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Dtype of the inputs; fp32 has TF32 off."""
    compiled: bool = False
    """Whether attention runs through torch.compile."""
    warmup: NonNegative = 5
    """Forward and backward passes run before timing begins."""
    steps: Positive = 100
    """Forward and backward passes timed; the results of the last one are compared with attention in float64."""
