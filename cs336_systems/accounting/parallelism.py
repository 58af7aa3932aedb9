"""Compute and communication of one parallel feed-forward layer, and the most devices that stay compute-bound.

The layer is SwiGLU's (y = (f(x W₁) ∘ x W₂) W₃, three matrices) or has two matrices (y = f(x W₁) W₂); the elementwise
functions are not counted. Numbers take two bytes. Compute and communication overlap, so a strategy is limited by the
longer of the two. Collectives are rings, as in `fsdp`. Sources: Rajbhandari et al. 2020 (ZeRO) and Shoeybi et al. 2019
(tensor parallelism) for the strategies, Austin et al. 2025 ("How to Scale Your Model", chapter 5) for the comparison of
times.
"""

import math
from dataclasses import dataclass

from cs336_systems.accounting.accelerators import Accelerator
from cs336_systems.accounting.units import BYTES

BACKWARD_PRODUCTS = 2
"""Matmuls of the backward pass for each of the forward pass: gradients of the input and of the weight."""


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """A layer and its batch."""

    tokens: float
    """B, over all devices."""
    d_model: int
    """D."""
    d_ff: int
    """D_FF."""
    matrices: int = 3
    """The number of matrices, of d_model · d_ff elements each."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, and of their gradients."""
        return BYTES["bf16"] * self.matrices * self.d_model * self.d_ff


@dataclass(frozen=True)
class Parallel:
    """A layer on several devices of one kind."""

    layer: FeedForward
    device: Accelerator

    @property
    def batch_limit(self) -> float:
        """The most devices of data parallelism and of FSDP, in either pass: N <= 1 + B W/C.

        With m matrices, FSDP's forward pass computes 2 m B D D_FF/(N C) seconds and communicates (N - 1)/N · 2 m D
        D_FF/W. The common factors, including the layer's sizes, cancel: (N - 1)/W <= B/C. The backward pass has twice
        as much of both, and so has data parallelism's, whose all-reduce takes as long as a gather and a reduce-scatter.
        """
        return 1 + self.layer.tokens / self.device.intensity

    @property
    def tensor_forward_limit(self) -> float:
        """The most devices of tensor parallelism: N <= 1 + (m/2) D_FF W/C, for m matrices.

        Compute takes 2 m B D D_FF/(N C) seconds, and the all-reduce 2 (N - 1)/N · 2 B D/W: B and D cancel.
        """
        return 1 + self.layer.matrices / 2 * self.layer.d_ff / self.device.intensity

    @property
    def tensor_backward_limit(self) -> float:
        """Twice the compute for the same communication: N <= 1 + m D_FF W/C."""
        return 1 + BACKWARD_PRODUCTS * (self.tensor_forward_limit - 1)

    def mixed_limit(self, *, overlapped: bool) -> float:
        """The most devices of FSDP with tensor parallelism, over all splits, in the forward pass.

        Relative to the compute, the collectives take (X - 1)/a and (Y - 1)/c, where a = B W/C and c = (m/2) D_FF W/C.
        If they overlap, each has to be at most 1, so X Y <= (1 + a)(1 + c). If they do not, their sum has to be at most
        1: X/a + Y/c <= 1 + 1/a + 1/c. The product of two numbers with a given sum is the largest when they are equal: X
        Y <= (a c + a + c)²/(4 a c), a quarter of a c if both are large. If X or Y would be below 1, the other axis
        alone is the best.
        """
        a, c = self.batch_limit - 1, self.tensor_forward_limit - 1
        if overlapped:
            return (1 + a) * (1 + c)
        total = a * c + a + c
        fsdp, tensor = total / (2 * c), total / (2 * a)
        return fsdp * tensor if min(fsdp, tensor) >= 1 else 1 + max(a, c)

    def best_fsdp(self, devices: float, *, overlapped: bool) -> float:
        """The size of the FSDP axis, not rounded, with which N devices communicate for the shortest time.

        Weights take g (X - 1)/N seconds and outputs h (N/X - 1)/N, with g = 2 m D D_FF/W and h = 4 B D/W. The first
        grows with X, and the second falls. Their maximum is smallest if they are equal, g X² + (h - g) X = h N; their
        sum if its derivative is 0, X = √(h N/g), or at the nearer end.
        """
        ratio = 2 * BYTES["bf16"] * self.layer.tokens * self.layer.d_model / self.layer.weight_bytes
        if overlapped:
            half = (ratio - 1) / 2
            return math.sqrt(half**2 + ratio * devices) - half
        return min(max(math.sqrt(ratio * devices), 1), devices)
