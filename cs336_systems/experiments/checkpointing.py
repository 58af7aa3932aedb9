"""Parameters of the experiment on activation checkpointing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment, NonNegative, Positive, Size


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Experiment):
    """Measure peak memory and time of a training step whose blocks are checkpointed in segments."""

    name: ClassVar[str] = "checkpointing"
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "warmup", "steps")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_checkpointing")

    size: Size = "small"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or a shape of your own as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 512
    """Tokens per sequence."""
    batch_size: Positive = 4
    """Sequences per batch."""
    vocab_size: Positive = 10_000
    """Rows of the embedding and of the output head."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """fp32 with TF32 off, or bf16 autocast over fp32 weights."""
    attention: Literal["plain", "flash"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2."""
    segment: NonNegative = 0
    """Consecutive blocks that keep only their input and are recomputed in the backward pass; 0: no checkpointing."""
    warmup: NonNegative = 2
    """Steps run before timing begins."""
    steps: Positive = 3
    """Steps timed."""

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step."""
        yield "", Setting.of(vars(self))

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """Each step is a sample."""
        return cell.steps if metric in ("forward", "backward", "optimizer", "step") else None
