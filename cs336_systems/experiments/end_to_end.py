"""Parameters of the end-to-end timing experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from cs336_systems.experiments.base import ModelClass, ModelExperiment, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class EndToEnd(ModelExperiment):
    """Time the forward pass, the backward pass and the whole training step of a Transformer language model."""

    name: ClassVar[str] = "end_to_end"
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "steps", "model")
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model", "test_training_step")
    per_step: ClassVar[tuple[str, ...]] = ("forward", "backward", "optimizer", "step")
    added_later: ClassVar[Mapping[str, Any]] = {"cold_start": False}

    compiled: bool = False
    """Whether the model runs through torch.compile."""
    attention: Literal["plain", "flash", "sdpa"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2; sdpa is PyTorch's
    scaled_dot_product_attention."""
    warmup: NonNegative = 5
    """Steps run before timing begins."""
    steps: Positive = 10
    """Steps timed."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments works."""
    mode: Literal["train_step", "forward_backward", "forward", "inference"] = "train_step"
    """Kind of step. inference: logits, under no_grad; forward: the forward pass and the loss, with autograd's graph;
    forward_backward: the backward pass too; train_step: AdamW's update too."""
    cold_start: bool = False
    """Whether a job starts directly with its first cell. Otherwise it first measures that cell, eager and with one
    timed step, and discards the result, so that no cell includes the process's one-time costs."""

    @classmethod
    def rehearsal(cls, cell: Any) -> Any:
        """The first cell, eager, since a compiled one would leave its graphs in the compiler's cache."""
        return None if cell.cold_start else replace(cell, compiled=False, steps=1)
