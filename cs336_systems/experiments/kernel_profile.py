"""Parameters of the kernel profile."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment, ModelClass, NonNegative, Positive, Size


@dataclass(frozen=True, kw_only=True)
class KernelProfile(Experiment):
    """Find the kernels (on a CPU: operators) of a language model's step, their durations, and what launched them."""

    name: ClassVar[str] = "kernel_profile"
    details: ClassVar[tuple[str, ...]] = ("stage", "range", "category", "kernel")
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "warmup", "steps", "model")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_attribution")

    size: Size = "small"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or a shape of your own as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 512
    """Tokens per sequence."""
    batch_size: Positive = 4
    """Sequences per batch."""
    vocab_size: Positive = 10_000
    """Rows of the embedding and of the output head."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 autocast over fp32 weights."""
    compiled: bool = False
    """Whether the model runs through torch.compile."""
    attention: Literal["plain", "flash", "sdpa"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2; sdpa is PyTorch's
    scaled_dot_product_attention."""
    warmup: NonNegative = 2
    """Steps run before any is timed."""
    steps: Positive = 2
    """Steps timed without the profiler, and as many with it."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments will do."""
    mode: Literal["train_step", "inference"] = "train_step"
    """Kind of step. inference: logits without a graph; train_step: logits, loss, backward pass and AdamW's update."""

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step."""
        yield "", Setting.of(vars(self))

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """Each step is a sample of metrics that are timed per step."""
        return cell.steps if metric in ("stage", "stage_profiled", "step", "step_profiled") else None
