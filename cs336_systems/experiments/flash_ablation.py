"""Parameters of the experiment that reverts one design decision of the attention kernels at a time."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cs336_systems.experiments.base import Experiment, Positive


@dataclass(frozen=True, kw_only=True)
class FlashAblation(Experiment):
    """Time this project's attention kernels unchanged, and with one design decision reverted; causal."""

    name: ClassVar[str] = "flash_ablation"
    timed: ClassVar[str] = "forward"
    numeric_tests: ClassVar[tuple[str, ...]] = ("attention.test_attention_gpu",)

    sequence: Positive = 16384
    """Queries, and keys, per sequence."""
    d: Positive = 64
    """Head dimension."""
    heads: Positive = 16
    """Heads; the batch is one sequence."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Dtype of the inputs."""
    rep: Positive = 100
    """Milliseconds of timed calls that do_bench aims for."""
    without: Literal[
        "nothing",
        "descriptors",
        "preprocess",
        "register_limit",
        "stage",
        "block_outer",
        "block_inner",
        "bf16x6",
        "matrix_units",
    ] = "nothing"
    """The reverted decision. nothing: the unchanged kernels; descriptors: tiles are loaded through pointers;
    preprocess: L and D are recomputed for every tile of keys; register_limit: no limit on registers per thread; stage:
    the pipeline has one stage fewer; block_outer, block_inner: half as many rows per program, or per iteration; bf16x6:
    each fp32 matmul is computed as three TF32 matmuls; matrix_units: fp32 matmuls run on the fp32 units."""
