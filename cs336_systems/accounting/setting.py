"""A training step in all its settings: the argument of the closed forms of memory and time."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.transformer import parameters
from cs336_systems.sizes import ModelShape, parse_size

Precision = Literal["fp32", "autocast", "bf16"]
"""autocast: bf16 over fp32 weights; bf16: weights in bf16, with fp32 masters in the optimizer."""
Attention = Literal["plain", "flash"]
"""flash: any kernel that keeps no scores in memory."""
Scheme = Literal["alone", "data parallel", "sharded optimizer", "ZeRO-2", "FSDP"]
"""State shared by ranks: none; gradients; also the optimizer's; ZeRO-2's; FSDP's."""
PRECISIONS: Mapping[str, Precision] = {"fp32": "fp32", "bf16": "autocast"}
"""Precisions by their names in experiments that do not train bf16 weights."""
WITHOUT_SCORES = ("flash", "sdpa")
"""Attention of experiments that keeps no scores."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One step of this project's model on one rank."""

    shape: ModelShape
    vocab_size: int
    batch_size: int
    """Number of sequences on this rank."""
    context: int
    precision: Precision = "fp32"
    attention: Attention = "plain"
    passes: Literal["eager", "compiled", "fused"] = "eager"
    """Norms, rotary embeddings and activations: op by op; through torch.compile; or fused kernels and linear
    cross-entropy."""
    mode: Literal["train_step", "forward_backward", "forward", "inference"] = "train_step"
    segment: int = 0
    """Consecutive blocks that keep only their input; 0: no checkpointing. Only for eager passes."""
    recomputed: int = 0
    """Number of blocks that keep only their input and attention's result. Only for fused passes."""
    keep_hidden: bool = True
    """Whether fused passes keep the feed-forward networks' hidden layers instead of recomputing them."""
    fp8: bool = False
    """Whether blocks compute matmuls in FP8, with delayed scaling in fused passes. For fused and compiled passes."""
    graph: bool = False
    """Whether the step is replayed from a CUDA graph."""
    overlap: bool = False
    """Whether parameters are updated, and gradients freed, during the backward pass."""
    ranks: int = 1
    scheme: Scheme = "alone"
    by_block: bool = True
    """FSDP's unit: a block or a layer."""
    bucket_mb: float | None = 100
    """Bucket size of data parallelism; None: gradients stay in place."""
    rebuilds: bool = False
    """Whether buckets are rebuilt at the second step, as in PyTorch's DDP."""
    first_buckets: bool = True
    """Whether the first buckets are still in memory then. Recorded launches of one program differ in this, likely
    because PyTorch's ProcessGroupNCCL holds a collective's tensors until its watchdog, which polls ten times a second,
    has seen the collective end and another one is called."""
    exposed: bool = False
    """Whether communication follows the backward pass, instead of overlapping with it."""
    symmetric: bool = False
    """Whether ranks write into each other's memory instead of calling collectives."""
    on_gpu: bool = True
    """Whether a GPU trains, with libraries' workspaces and a caching allocator; on a CPU autocast casts less."""

    @classmethod
    def of(cls, parameters: Any, **others: Any) -> Self:
        """The step described by a cell's parameters or a row's columns.

        Args:
            parameters: values by name, with `get`: `size`, `batch_size` and `context`, and optionally `vocab_size`,
                `precision`, `attention`, `compiled`, `segment` and `mode`.
            others: fields that the parameters do not have, or have under another name.
        """
        described: dict[str, Any] = {
            "shape": parse_size(parameters["size"]),
            "vocab_size": int(parameters.get("vocab_size", 0)),
            "batch_size": int(parameters["batch_size"]),
            "context": int(parameters["context"]),
            "precision": PRECISIONS[parameters.get("precision", "fp32")],
            "attention": "flash" if parameters.get("attention") in WITHOUT_SCORES else "plain",
            "passes": "compiled" if parameters.get("compiled") else "eager",
            "segment": int(parameters.get("segment", 0)),
            "mode": parameters.get("mode", "train_step"),
        }
        return cls(**described | others)

    @property
    def tokens(self) -> int:
        """Tokens of this rank's batch."""
        return self.batch_size * self.context

    @cached_property
    def weights(self) -> int:
        """Number of weights."""
        return parameters(self.shape, self.vocab_size)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight, and of its gradient."""
        return 2 if self.precision == "bf16" else 4

    @property
    def trains(self) -> bool:
        """Whether the step updates the weights."""
        return self.mode == "train_step"

    @cached_property
    def block(self) -> BlockActivations:
        """Activations of an eager block over fp32 weights."""
        return BlockActivations(
            shape=self.shape,
            batch_size=self.batch_size,
            context=self.context,
            precision="fp32" if self.precision == "fp32" else "bf16",
            attention=self.attention,
            on_gpu=self.on_gpu,
        )

    @property
    def pairs(self) -> int:
        """Scores of one block: pairs of tokens in every head."""
        return self.batch_size * self.shape.num_heads * self.context**2
