"""Parameters of the FlashAttention experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment, Positive

HOST_BOUND = 4096
"""Sequences up to here keep the host as busy as the device, so device time is taken from a replayed graph too."""
MATMUL = 4096
"""Rows and columns of the square matrices whose product, timed in every cell, shows what rate matmuls reach."""


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
    }
    timed: ClassVar[str] = "forward_backward"
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_attention", "test_attention_gpu")

    sequence: Positive = 1024
    """Queries, and keys, per sequence."""
    d: Positive = 64
    """Head dimension."""
    heads: Positive = 1
    """Heads; the batch is one sequence."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Type of the inputs; fp32 has TF32 off."""
    compiled_call: bool = False
    """Whether the function of q, k and v runs through torch.compile, as on the leaderboard."""
    rep: Positive = 100
    """Milliseconds of timed calls that do_bench aims for; on a CPU, ten calls are timed."""
    implementation: Literal[
        "tiled",
        "triton",
        "triton_compiled_backward",
        "plain",
        "plain_compiled",
        "sdpa_flash",
        "sdpa_cudnn",
        "flex",
        "flash_attention_4",
    ] = "triton"
    """tiled: this project's PyTorch version; triton: its kernels; triton_compiled_backward: its forward kernel with the
    backward pass in compiled PyTorch; plain and plain_compiled: the score matrix in memory; sdpa_flash and sdpa_cudnn:
    backends of PyTorch's scaled_dot_product_attention; flex: FlexAttention, compiled; flash_attention_4: its package,
    if installed."""
