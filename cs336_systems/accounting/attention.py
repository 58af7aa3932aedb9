"""FLOPs and bytes of attention, from its shape alone."""

from cs336_systems.accounting.units import FP32_BYTES


def forward_flops(batch: int, heads: int, sequence: int, d: int, *, causal: bool) -> float:
    """Operations of q kᵀ and p v, 2mnk each; half of them when masked pairs are not counted."""
    return 4 * batch * heads * sequence**2 * d * (0.5 if causal else 1)


def softmax_flops(batch: int, heads: int, sequence: int) -> int:
    """Operations of a softmax over every row of the scores: per score a comparison for the maximum, a subtraction, an
    exponential (counted as one), an addition and a division."""
    return 5 * batch * heads * sequence**2


def flash_flops(phase: str, batch: int, heads: int, sequence: int, d: int, *, causal: bool) -> float:
    """Operations as FlashAttention papers count them: a backward pass is 2.5 forward passes (five matmuls to two)."""
    factor = {"forward": 1, "backward": 2.5, "forward_backward": 3.5}[phase]
    return factor * forward_flops(batch, heads, sequence, d, causal=causal)


def least_flops(phase: str, batch: int, heads: int, sequence: int, d: int, *, causal: bool) -> float:
    """Operations that no implementation can leave out: a backward pass has four matmuls if it recomputes none."""
    factor = {"forward": 1, "backward": 2, "forward_backward": 3}[phase]
    return factor * forward_flops(batch, heads, sequence, d, causal=causal)


def plain_bytes_before_backward(batch: int, sequence: int, d: int) -> int:
    """Bytes in use between plain attention's passes in fp32, without heads and mask.

    q, k, v, the output and its gradient, batch · sequence · d each, and the softmax's result, batch · sequence²: the
    one quadratic tensor that the backward pass needs. The scores themselves are freed as soon as they are normalized.
    """
    return FP32_BYTES * (5 * batch * sequence * d + batch * sequence**2)


def plain_peak_bytes(batch: int, sequence: int, d: int) -> int:
    """Bytes in use at the peak of plain attention in fp32, without heads and mask, in its backward pass.

    Six tensors of batch · sequence · d elements (q, k, v, the output, its gradient and v's gradient) and four of batch
    · sequence²: the softmax's result, its gradient, the product of the two (the first step of PyTorch's softmax
    backward on a GPU), and the scores' gradient.
    """
    return FP32_BYTES * (6 * batch * sequence * d + 4 * batch * sequence**2)
