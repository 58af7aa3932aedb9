"""Parameters of the kernel profile."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import ModelClass, ModelExperiment, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class KernelProfile(ModelExperiment):
    """Profile a language model's step: its kernels (on a CPU, operators), their durations, and what launched them."""

    name: ClassVar[str] = "kernel_profile"
    details: ClassVar[tuple[str, ...]] = ("stage", "range", "category", "kernel")
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "warmup", "steps", "model")
    per_step: ClassVar[tuple[str, ...]] = ("stage", "stage_profiled", "step", "step_profiled")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_attribution")

    compiled: bool = False
    """Whether the model runs through torch.compile."""
    attention: Literal["plain", "flash", "sdpa"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2; sdpa is PyTorch's
    scaled_dot_product_attention."""
    warmup: NonNegative = 2
    """Steps run before any is timed."""
    steps: Positive = 2
    """Steps timed without the profiler, and the same number with it."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments works."""
    mode: Literal["train_step", "inference"] = "train_step"
    """Kind of step. inference: logits without a graph; train_step: logits, loss, backward pass and AdamW's update."""
