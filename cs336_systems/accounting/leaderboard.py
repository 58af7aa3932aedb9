"""The training step of the 2026 edition's leaderboard, an 8B model on two GPUs: its FLOPs and memory by closed form."""

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fused_training import recomputed_flops
from cs336_systems.accounting.transformer import forward_flops, parameters, state_bytes
from cs336_systems.sizes import ModelShape

SHAPE = ModelShape(d_model=4096, d_ff=11008, num_layers=34, num_heads=32)
VOCAB_SIZE, CONTEXT, BATCH_SIZE, GPUS = 151_936, 32_768, 2, 2
PARAMETERS = parameters(SHAPE, VOCAB_SIZE)
STATE_BYTES = state_bytes("train_step", SHAPE, VOCAB_SIZE)
"""Bytes of all ranks together: weights, gradients and AdamW's two moments in fp32."""
GPU, RECORD_SECONDS, NAIVE_SECONDS = "NVIDIA B200", 3.837, 10.0
"""The leaderboard's GPU, and the handout's times: the record, and a naive implementation's."""


def step_flops() -> dict[str, int]:
    """FLOPs of the step's matrix multiplies, 2mnk each, three times the forward pass's.

    Of attention's two matmuls only the half that the causal mask leaves is counted.
    """
    everything = 3 * forward_flops(SHAPE, VOCAB_SIZE, BATCH_SIZE, CONTEXT)
    attention = 3 * SHAPE.num_layers * 2 * BATCH_SIZE * CONTEXT**2 * SHAPE.d_model
    head = 3 * 2 * BATCH_SIZE * CONTEXT * SHAPE.d_model * VOCAB_SIZE
    return {"projections": everything - 2 * attention - head, "attention": attention, "head": head}


def saved_bytes(segment: int) -> int:
    """Bytes that a rank's forward pass leaves for the backward pass, one sequence of bf16 autocast with FlashAttention.

    Args:
        segment: blocks per checkpointed segment; 0: no recomputation.
    """
    block = BlockActivations(
        shape=SHAPE, batch_size=BATCH_SIZE // GPUS, context=CONTEXT, precision="bf16", attention="flash"
    )
    return StepMemory(block=block, vocab_size=VOCAB_SIZE, segment=segment).saved_for_backward


def rank_flops(shape: ModelShape, vocab_size: int, batch_size: int, context: int, recomputed: int = 0) -> int:
    """FLOPs of one rank's matmuls in a step, 2mnk each, with half of attention's as in `step_flops`.

    Args:
        shape: size of the model.
        vocab_size: rows of the output head.
        batch_size: sequences of the rank.
        context: tokens per sequence.
        recomputed: blocks that compute everything but attention again in the backward pass.
    """
    causal = forward_flops(shape, vocab_size, batch_size, context)
    causal -= shape.num_layers * 2 * batch_size * context**2 * shape.d_model
    return 3 * causal + recomputed * recomputed_flops(shape, batch_size * context)
