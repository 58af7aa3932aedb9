"""Parameters of the memory profile."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import ModelClass, ModelExperiment


@dataclass(frozen=True, kw_only=True)
class MemoryProfile(ModelExperiment):
    """Record the memory of one step of a Transformer language model, allocation by allocation."""

    name: ClassVar[str] = "memory_profile"
    details: ClassVar[tuple[str, ...]] = ("stage", "category", "freed", "operator", "source", "code", "rank")
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "model")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step", "test_memory_history_gpu")

    attention: Literal["plain", "flash", "sdpa"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2; sdpa is PyTorch's
    scaled_dot_product_attention."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments works."""
    mode: Literal["inference", "forward", "train_step"] = "train_step"
    """Kind of step. inference: the logits, under no_grad; forward: logits and loss, with the graph that a backward
    pass needs; train_step: backward pass and AdamW's update too."""
