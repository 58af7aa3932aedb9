"""Training steps at the hardware's speed: fused passes, updates and losses for any PyTorch loop."""

from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.captured_step import CapturedStep
from cs336_systems.training.checkpointing import checkpoint_blocks
from cs336_systems.training.clipping import clip_scale
from cs336_systems.training.compiled_blocks import compile_blocks
from cs336_systems.training.fp8 import use_fp8
from cs336_systems.training.fused_model import FusedTransformerBlock, FusedTransformerLM, fuse
from cs336_systems.training.gradient_sums import GradientSums
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy
from cs336_systems.training.packed_linear import packed_linear
from cs336_systems.training.rms_norm import add_rms_norm
from cs336_systems.training.rope import rotate_qkv
from cs336_systems.training.swiglu import swiglu, swiglu_linear

__all__ = [
    "CapturedStep",
    "FusedTransformerBlock",
    "FusedTransformerLM",
    "GradientSums",
    "MasterAdamW",
    "add_rms_norm",
    "checkpoint_blocks",
    "clip_scale",
    "compile_blocks",
    "fuse",
    "linear_cross_entropy",
    "packed_linear",
    "rotate_qkv",
    "swiglu",
    "swiglu_linear",
    "use_fp8",
]
