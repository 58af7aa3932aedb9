"""Parameters of the experiment on one Transformer block's memory."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import SequencesExperiment


@dataclass(frozen=True, kw_only=True)
class BlockMemory(SequencesExperiment):
    """Measure the tensors that one Transformer block saves for its backward pass, by operator, and its gradients."""

    name: ClassVar[str] = "block_memory"
    details: ClassVar[tuple[str, ...]] = ("range", "operator", "tensor")
    settings: ClassVar[tuple[str, ...]] = ("batch_size",)
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_model",)

    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 autocast over fp32 weights."""
    attention: Literal["plain", "flash"] = "plain"
    """plain materializes the score matrix; flash is this project's FlashAttention-2."""
