"""Parameters of the FlashAttention experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cs336_systems.experiments.base import Experiment, Positive

HOST_BOUND = 4096
"""Sequences up to here keep the host as busy as the device, so device time is taken from a replayed graph too."""
FEW_QUERIES = 2**18
"""With more queries than this in all sequences and heads of a batch, the host is ahead of the device anyway."""
HANDOUT_WARMUP, HANDOUT_REP = 1000, 10_000
"""Milliseconds of warm-up and of timed calls by the handout's protocol for its leaderboard."""
MATMUL = 4096
"""Rows and columns of the square matrices whose product, timed in every cell, shows what rate matmuls reach."""

KERNEL_OF = {
    "triton": "forward_kernel",
    "triton_compiled_backward": "forward_kernel",
    "sdpa_flash": "flash_fwd_",
    "sdpa_cudnn": "cudnn",
    "flex": "flex_attention",
    "flex_autotuned": "flex_attention",
    "flash_attention_4": "flash_attncute",
}
"""Part of the name of a kernel that each implementation launches on a GPU."""


@dataclass(frozen=True, kw_only=True)
class Flash(Experiment):
    """Time attention implementations against each other: forward, backward, both, and peak memory."""

    name: ClassVar[str] = "flash"
    metrics: ClassVar[Mapping[str, str]] = {
        "forward": "ms",
        "backward": "ms",
        "forward_backward": "ms",
        "peak_memory": "MiB",
        "first_call": "s",
        "matmul": "ms",
        "host": "us",
        "graph": "ms",
        "handout": "ms",
        "handout_sm_clock": "MHz",
        "handout_power": "W",
        "launches": "",
    }
    details: ClassVar[tuple[str, ...]] = ("kernels",)
    timed: ClassVar[str] = "forward_backward"
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "attention.test_attention",
        "attention.test_attention_gpu",
        "attention.test_attention_hopper",
    )
    added_later: ClassVar[Mapping[str, Any]] = {"batch_size": 1, "causal": True, "kernels": ""}

    sequence: Positive = 1024
    """Queries, and keys, per sequence."""
    d: Positive = 64
    """Head dimension."""
    heads: Positive = 1
    """Heads."""
    batch_size: Positive = 1
    """Sequences per batch."""
    causal: bool = True
    """Whether a query sees only the keys up to its own position."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Type of the inputs; fp32 has TF32 off."""
    compiled_call: bool = False
    """Whether the function of q, k and v runs through torch.compile, as on the leaderboard; then it is timed by the
    handout's protocol too."""
    rep: Positive = 100
    """Milliseconds of timed calls that do_bench aims for; on a CPU, ten calls are timed."""
    implementation: Literal[
        "tiled",
        "tiled_compiled",
        "triton",
        "triton_compiled_backward",
        "plain",
        "plain_compiled",
        "sdpa_flash",
        "sdpa_cudnn",
        "flex",
        "flex_autotuned",
        "flash_attention_4",
    ] = "triton"
    """tiled and tiled_compiled: this project's PyTorch version; triton: its kernels; triton_compiled_backward: its
    forward kernel with the backward pass in compiled PyTorch; plain and plain_compiled: the score matrix in memory;
    sdpa_flash and sdpa_cudnn: backends of PyTorch's scaled_dot_product_attention; flex: FlexAttention, compiled;
    flex_autotuned: the same, its tiles chosen by timing them; flash_attention_4: its package, if installed."""


def replayed(batch_size: Any, heads: Any, sequence: Any) -> Any:
    """Whether a cell's device time is taken from a replayed graph: of numbers, or of columns of a table."""
    return (sequence <= HOST_BOUND) & (batch_size * heads * sequence <= FEW_QUERIES)
