"""Attention as users bring it: right, wrong in one place, and what raises."""

import sys

import torch
from torch import Tensor

from cs336_systems.attention import plain_attention


def right(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attention."""
    return plain_attention(q, k, v, is_causal)


class Right(torch.autograd.Function):
    """The same with its backward pass, as the handout asks for it."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal = is_causal
        return plain_attention(q, k, v, is_causal)

    @staticmethod
    def backward(ctx, grad_o):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            o = plain_attention(*inputs, ctx.is_causal)
        return *torch.autograd.grad(o, inputs, grad_o), None


class WrongKeys(Right):
    """The gradient of 64 keys of the fourth head is half of what it should be."""

    @staticmethod
    def backward(ctx, grad_o):
        dq, dk, dv, _ = Right.backward(ctx, grad_o)
        dk[3, 64:128] *= 0.5
        return dq, dk, dv, None


def raising(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Raises."""
    raise ValueError(f"cannot do {len(q)} heads")


def ending(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """End the process, as a script does."""
    sys.exit(0)


def unsupported(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Says what it does not do."""
    raise NotImplementedError("it has no mask")


def transposed(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Returns its output in another shape."""
    return plain_attention(q, k, v, is_causal).mT


def too_much(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Runs out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def waiting(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Waits for the device."""
    return plain_attention(q, k, v, is_causal) if q.isfinite().all().item() else q


class _InTf32(torch.autograd.Function):
    """A matmul whose inputs are rounded to ten bits after the point, as tensor cores round fp32."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return _tf32(a) @ _tf32(b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return _tf32(grad) @ _tf32(b.mT), _tf32(a.mT) @ _tf32(grad)


def _tf32(x: Tensor) -> Tensor:
    return ((x.contiguous().view(torch.int32) + 2**12) >> 13 << 13).view(torch.float32)


def in_tf32(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attention with matmuls in TF32."""
    scores = _InTf32.apply(q, k.mT) * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return _InTf32.apply(scores.softmax(-1), v)
