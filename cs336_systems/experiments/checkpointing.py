"""Parameters of the experiment on activation checkpointing."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import ModelExperiment, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Checkpointing(ModelExperiment):
    """Measure peak memory and time of a training step whose blocks are checkpointed in segments."""

    name: ClassVar[str] = "checkpointing"
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "warmup", "steps")
    per_step: ClassVar[tuple[str, ...]] = ("forward", "backward", "optimizer", "step")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_checkpointing")

    precision: Literal["fp32", "bf16"] = "bf16"
    attention: Literal["plain", "flash"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2."""
    segment: NonNegative = 0
    """Consecutive blocks per segment, which keeps only its input and is recomputed in the backward pass; 0: none."""
    warmup: NonNegative = 2
    """Steps run before timing begins."""
    steps: Positive = 3
    """Steps timed."""
