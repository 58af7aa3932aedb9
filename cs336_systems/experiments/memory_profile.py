"""Parameters of the memory profile."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment, ModelClass, Positive, Size


@dataclass(frozen=True, kw_only=True)
class MemoryProfile(Experiment):
    """Follow the memory of one step of a Transformer language model, allocation by allocation."""

    name: ClassVar[str] = "memory_profile"
    details: ClassVar[tuple[str, ...]] = ("stage", "category", "freed", "operator", "source", "code", "rank")
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "model")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_memory_history_gpu")

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
    attention: Literal["plain", "flash", "sdpa"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2; sdpa is PyTorch's
    scaled_dot_product_attention."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments will do."""
    mode: Literal["inference", "forward", "train_step"] = "train_step"
    """Kind of step. inference: the logits, under no_grad; forward: logits and loss, with the graph that a backward
    pass needs; train_step: backward pass and AdamW's update too."""

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step."""
        yield "", Setting.of(vars(self))
