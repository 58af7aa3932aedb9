"""The training step of the 2026 edition's leaderboard, an 8B model on two GPUs: its FLOPs by closed form.

The step uses `cs336_systems.training`: bf16 weights with fp32 masters, fused passes, linear cross-entropy in chunks,
and an update during the backward pass.
"""

from collections.abc import Mapping
from typing import Any

from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.sizes import ModelShape

SHAPE = ModelShape(d_model=4096, d_ff=11008, num_layers=34, num_heads=32)
VOCAB_SIZE, CONTEXT, BATCH_SIZE, GPUS = 151_936, 32_768, 2, 2
PARAMETERS = parameters(SHAPE, VOCAB_SIZE)
FUSED: Mapping[str, Any] = {
    "precision": "bf16",
    "attention": "flash",
    "passes": "fused",
    "keep_hidden": False,
    "overlap": True,
    "scheme": "ZeRO-2",
}
"""How the step computes, and what the ranks share."""
RANK = Setting(shape=SHAPE, vocab_size=VOCAB_SIZE, batch_size=BATCH_SIZE // GPUS, context=CONTEXT, **FUSED, ranks=GPUS)
"""The step of one rank, with no block recomputed."""
GPU, RECORD_SECONDS = "NVIDIA B200", 3.837
"""The leaderboard's GPU, and the record in the handout."""


def flops_by_part() -> dict[str, int]:
    """FLOPs of the step's matrix multiplies, 2mnk each, three times the forward pass's.

    For attention's two matmuls, only the unmasked half is counted.
    """
    everything = step_flops("train_step", SHAPE, VOCAB_SIZE, BATCH_SIZE, CONTEXT)
    causal = step_flops("train_step", SHAPE, VOCAB_SIZE, BATCH_SIZE, CONTEXT, causal=True)
    attention = everything - causal
    head = 3 * 2 * BATCH_SIZE * CONTEXT * SHAPE.d_model * VOCAB_SIZE
    return {"projections": causal - attention - head, "attention": attention, "head": head}


def rank_flops(shape: ModelShape, vocab_size: int, batch_size: int, context: int, recomputed: int = 0) -> int:
    """FLOPs of one rank's matmuls in a step, 2mnk each, with half of attention's as in `flops_by_part`.

    `recomputed` blocks compute all matmuls except attention's and the last one again in the backward pass.
    """
    again = 2 * batch_size * context * (4 * shape.d_model**2 + 2 * shape.d_model * shape.d_ff)
    return step_flops("train_step", shape, vocab_size, batch_size, context, causal=True) + recomputed * again
