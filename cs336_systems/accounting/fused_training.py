"""Memory of a training step with bf16 weights and fp32 masters, whose update runs during the backward pass.

The model is `cs336_systems.training`'s: fused passes, linear cross-entropy in chunks, and checkpointing that keeps each
block's input and attention's output.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from cs336_systems.accounting.transformer import block_parameters, parameters
from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape

BF16 = BYTES["bf16"]
STATE_BYTES = 10
"""Of each parameter besides its bf16 weight: the rest of its fp32 master (2), and two fp32 moments."""
UNITS_IN_FLIGHT = 3
"""Units whose gradients are in memory at a time: two on their way, and the one that the backward pass completes."""
LOGITS_BYTES = 512 * 2**20
"""Logits of a chunk of tokens; fewer if that is all."""
GB = 10**9
RESERVE = 0.05
"""Share of a device's memory for what the closed form leaves out: libraries' workspaces and gaps of the allocator."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one rank, by what they are for."""

    shape: ModelShape
    vocab_size: int
    tokens: int
    """Tokens of this rank's sequences."""
    ranks: int
    """Ranks that share the optimizer's state."""
    recomputed: int
    """Blocks that keep only their input and attention's result, and compute the rest again in the backward pass."""

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return parameters(self.shape, self.vocab_size)

    @property
    def weights(self) -> int:
        """The bf16 weights, whole on each rank."""
        return BF16 * self.parameters

    @property
    def state(self) -> int:
        """This rank's share of masters and moments."""
        return math.ceil(STATE_BYTES * self.parameters / self.ranks)

    @property
    def gradients(self) -> int:
        """Gradients on their way: of blocks, and of the head or the embedding."""
        of_block, of_table = BF16 * block_parameters(self.shape), BF16 * self.vocab_size * self.shape.d_model
        return (UNITS_IN_FLIGHT - 1) * of_block + of_table

    @property
    def stream(self) -> int:
        """One bf16 tensor of the residual stream, [tokens, d_model]."""
        return BF16 * self.tokens * self.shape.d_model

    @property
    def statistics(self) -> int:
        """One fp32 number per token: what a norm keeps."""
        return FP32_BYTES * self.tokens

    @property
    def attention_result(self) -> int:
        """Attention's output, and the log-sum-exp of each row of scores."""
        return self.stream + FP32_BYTES * self.tokens * self.shape.num_heads

    @property
    def kept_block(self) -> int:
        """Everything that a block keeps: both norms' sums and results, q, k, v, attention's result, gate and up."""
        gate_up = 2 * BF16 * self.tokens * self.shape.d_ff
        return 2 * (2 * self.stream + self.statistics) + 3 * self.stream + self.attention_result + gate_up

    @property
    def recomputed_block(self) -> int:
        """A checkpointed block's input and attention's result."""
        return self.stream + self.attention_result

    @property
    def activations(self) -> int:
        """Kept for the backward pass, when the forward pass ends."""
        kept = self.shape.num_layers - self.recomputed
        head = 2 * self.stream + self.statistics  # the final norm's input, and the gradient of the head's
        return kept * self.kept_block + self.recomputed * self.recomputed_block + head

    @property
    def temporaries(self) -> int:
        """The most that the loss needs besides, or the backward pass of a block that has been computed again.

        The loss: logits of a chunk; gradients of the head's input and of its weight, in fp32 and rounded. A block: all
        that it keeps otherwise; its hidden layer and the gradients of the hidden layer, of gate and up; and those of
        three tensors like the residual stream.
        """
        logits = min(LOGITS_BYTES, BF16 * self.tokens * self.vocab_size)
        loss = logits + self.stream + (FP32_BYTES + BF16) * self.vocab_size * self.shape.d_model
        hidden = BF16 * self.tokens * self.shape.d_ff
        backward = 4 * hidden + 3 * self.stream
        # When the first of the checkpointed blocks is computed again, the others have been freed.
        again = self.kept_block if self.recomputed == self.shape.num_layers else 0
        return max(loss, backward + again)

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.state + self.gradients + self.activations + self.temporaries

    def fitted(self, memory: float) -> Self:
        """The same with as few blocks computed again as fit into `memory` bytes; with all of them if nothing fits."""
        choices = [replace(self, recomputed=blocks) for blocks in range(self.shape.num_layers + 1)]
        return next((choice for choice in choices if choice.fits(memory)), choices[-1])

    def fits(self, memory: float) -> bool:
        """Whether it fits into `memory` bytes."""
        return self.total <= (1 - RESERVE) * memory

    def verdict(self, memory: float) -> str:
        """Say in a sentence whether it fits into `memory` bytes."""
        blocks = f"with {self.recomputed} of {self.shape.num_layers} blocks computed again in the backward pass"
        needed, free = f"{self.total / GB:.3g} GB", f"{memory / GB:.3g} GB"
        if self.fits(memory):
            return f"It fits: a rank needs {needed} of {free} {blocks}"
        return (
            f"It does not fit: a rank needs {needed} {blocks}, and {free} are free, {RESERVE:.0%} of them as a reserve"
        )


def recomputed_flops(shape: ModelShape, tokens: int) -> int:
    """FLOPs that a checkpointed block computes again: all matmuls but attention's and the last one, 2mnk each."""
    return 2 * tokens * (4 * shape.d_model**2 + 2 * shape.d_model * shape.d_ff)
