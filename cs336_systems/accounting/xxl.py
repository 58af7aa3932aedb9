"""Memory of the handout's XXL: blocks of two linear layers and nothing else, trained without checkpointing.

Weights, accumulated gradients and AdamW's two moments are in fp32, activations in bf16.
"""

import math
from dataclasses import dataclass

from cs336_systems.accounting.units import BYTES, FP32_BYTES

STATES = {"master weights": 1, "accumulated gradients": 1, "AdamW's two moments": 2}
"""A weight's states in fp32, and the number of elements of each."""


@dataclass(frozen=True, kw_only=True)
class LinearPairs:
    """Blocks of d_model → d_ff → d_model."""

    d_model: int
    d_ff: int
    blocks: int

    @property
    def parameters(self) -> int:
        """2 d_model · d_ff per block."""
        return self.blocks * 2 * self.d_model * self.d_ff

    @property
    def state_bytes(self) -> int:
        """16 bytes per weight."""
        return sum(STATES.values()) * FP32_BYTES * self.parameters

    @property
    def narrow_bytes(self) -> int:
        """Bytes per token of the inputs of the first layers, d_model wide."""
        return BYTES["bf16"] * self.blocks * self.d_model

    @property
    def wide_bytes(self) -> int:
        """Bytes per token of the inputs of the second layers, d_ff wide."""
        return BYTES["bf16"] * self.blocks * self.d_ff

    @property
    def saved_bytes(self) -> int:
        """Bytes per token that the backward pass needs: each linear layer's input, for the gradient of its weight."""
        return self.narrow_bytes + self.wide_bytes

    def least_devices(self, memory: float, *, sharded: float = 0, whole: float = 0) -> int | None:
        """The smallest number of devices with less than `memory` bytes in use on each; None if no number is enough.

        Weights, gradients, moments and `sharded` bytes of activations are divided by the number of devices; each device
        holds `whole` bytes in full.
        """
        if whole >= memory:
            return None
        return math.floor((self.state_bytes + sharded) / (memory - whole)) + 1


XXL = LinearPairs(d_model=16384, d_ff=53248, blocks=126)
