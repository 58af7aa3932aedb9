"""Cross-entropy in Triton: logits become their own gradient, in place."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.launcher import on_device

MAX_BLOCK = 8192
"""Number of logits that a program holds at a time; longer rows are read twice."""
SCALE_BLOCK = 4096


@triton.jit
def _cross_entropy_kernel(
    logits,  # pointer, [tokens, vocabulary], rows `stride` apart: overwritten by gradients
    targets,  # pointer, [tokens] integers
    factor,  # pointer, one fp32 number: factor of the gradients
    losses,  # pointer, [tokens] fp32, out
    stride,  # a multiple of 16; the elements between vocabulary and stride are padding
    vocabulary,
    ignore_index,
    GRADIENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,  # whether BLOCK holds a row
):
    """Compute one token's loss and the gradients of its logits."""
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + token).to(tl.int64)
    row = logits + token * stride
    counted = target != ignore_index
    if counted:
        lane = tl.arange(0, BLOCK)
        maximum = -float("inf")
        total = 0.0
        correct = 0.0
        x = tl.full([BLOCK], 0.0, tl.float32)
        for start in range(0, vocabulary, BLOCK):
            column = start + lane
            # Masked by the stride, not by the vocabulary: only multiples of a vector can be loaded as vectors.
            x = tl.load(row + column, mask=column < stride, other=0.0).to(tl.float32)
            x = tl.where(column < vocabulary, x, -float("inf"))
            new_maximum = tl.maximum(maximum, tl.max(x, 0))
            total = total * tl.exp(maximum - new_maximum) + tl.sum(tl.exp(x - new_maximum), 0)
            maximum = new_maximum
            correct += tl.sum(tl.where(column == target, x, 0.0), 0)
        loss = maximum + tl.log(total) - correct
        valid = (target >= 0) & (target < vocabulary)
        tl.store(losses + token, tl.where(valid, loss, float("nan")))
        if GRADIENTS:
            scale = tl.where(valid, tl.load(factor), float("nan"))
            for start in range(0, vocabulary, BLOCK):
                column = start + lane
                if not ONE_BLOCK:
                    x = tl.load(row + column, mask=column < stride, other=0.0).to(tl.float32)
                probability = tl.exp(x - maximum) / total
                gradient = (probability - tl.where(column == target, 1.0, 0.0)) * scale
                tl.store(row + column, gradient.to(logits.dtype.element_ty), mask=column < stride)
    else:
        tl.store(losses + token, 0.0)
        if GRADIENTS:
            for start in range(0, vocabulary, BLOCK):
                column = start + tl.arange(0, BLOCK)
                zeros = tl.zeros([BLOCK], logits.dtype.element_ty)
                tl.store(row + column, zeros, mask=column < stride)


@triton.jit
def _scale_kernel(x, factor, n, BLOCK: tl.constexpr):
    """Multiply [n] elements by one fp32 number; nothing is read if it is 1."""
    scale = tl.load(factor).to(tl.float32)
    if scale != 1.0:
        offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        mask = offset < n
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) * scale
        tl.store(x + offset, value.to(x.dtype.element_ty), mask=mask)


@on_device
def cross_entropy_in_place(
    logits: Tensor, targets: Tensor, factor: Tensor, losses: Tensor, ignore_index: int, gradients: bool
) -> None:
    """Write each token's loss and, if wanted, overwrite the logits with the gradients of factor · sum(losses).

    The logits, [tokens, vocabulary], have a row stride that is a multiple of 16 elements; the padding is overwritten
    too. The factor is one fp32 number. The losses, [tokens] fp32, are 0 for ignored targets, and NaN, like their
    gradients, for invalid ones.
    """
    tokens, vocabulary = logits.shape
    block = min(MAX_BLOCK, triton.next_power_of_2(vocabulary))
    arguments: tuple[Any, ...] = (logits, targets, factor, losses, logits.stride(0), vocabulary, ignore_index)
    if tokens:
        warps = max(1, min(16, block // 512))
        _cross_entropy_kernel[(tokens,)](*arguments, gradients, block, block >= vocabulary, num_warps=warps)


@on_device
def scale_in_place(x: Tensor, factor: Tensor) -> None:
    """Multiply a contiguous tensor by one number on its device; it is not read if the number is 1."""
    if x.numel():
        _scale_kernel[(triton.cdiv(x.numel(), SCALE_BLOCK),)](x, factor, x.numel(), SCALE_BLOCK)
