"""PyTorch's memory-efficient kernels behind the interface of the Triton kernels, for GPUs that those are not for.

Such as the T4, on which Triton's matmuls use no tensor cores.

All functions accept q [batch, heads, n_queries, d] and k, v [batch, key heads, n_keys, d], or the same without the axis
of heads, in bf16, fp16 or fp32, with any strides. bf16, which those GPUs compute in software, becomes fp32.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cs336_systems.attention.launcher import cdiv, sum_shared
from cs336_systems.attention.operators import empty_output, softmax_scale

ALIGNED_TO = 8  # elements of a row, as the kernels require
LSE_ALIGNED_TO = 32  # rows of L, likewise


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm."""
    n_queries, d = q.shape[-2:]
    inputs = [_rows(x, q, d) for x in (q, k, v)]
    o, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *inputs, None, True, is_causal=is_causal, scale=softmax_scale(d, scale)
    )
    return _like(q, o), lse[..., :n_queries].reshape(q.shape[:-1])


def attention_backward(
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float | None = None,
    grad_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v from the gradients of o and, unless it is None, of L."""
    n_queries, d = q.shape[-2:]
    width = d if grad_lse is None else d + 1
    do, o_rows, v_rows = (_rows(x, q, width) for x in (grad_o, o, v))
    if grad_lse is not None:
        # One more column, of ones in v: with the gradient of L in that of the output, dP = dO V^T becomes dP + dL.
        v_rows[..., d] = 1
        do[..., d] = grad_lse.reshape(do.shape[:-1])
    rows = lse.reshape(do.shape[:-1])
    rows = pad(rows, (0, -n_queries % LSE_ALIGNED_TO), value=torch.inf)
    seed = torch.zeros((), dtype=torch.int64)
    dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *(do, _rows(q, q, d), _rows(k, q, d), v_rows, None, o_rows, rows, seed, seed, 0.0),
        *([True, True, True, False], is_causal),
        scale=softmax_scale(d, scale),
    )
    shape = (*q.shape[:-2], *k.shape[-2:])
    dk, dv = (x[..., :d].reshape(shape) for x in (dk, dv))
    dk, dv = sum_shared(dk, dv, k, v)
    return _like(q, dq), dk.to(k.dtype), dv.to(v.dtype)


def _rows(x: Tensor, q: Tensor, width: int) -> Tensor:
    """Make x [batch, heads, rows, width], with as many heads as q, and zeros up to an aligned width."""
    if x.shape[:-2] != q.shape[:-2]:
        x = x.repeat_interleave(q.shape[1] // x.shape[1], 1)
    x = x.float() if x.dtype == torch.bfloat16 else x
    x = x if x.dim() == 4 else x[:, None]
    return pad(x, (0, cdiv(width, ALIGNED_TO) * ALIGNED_TO - x.shape[-1])).contiguous()


def _like(x: Tensor, result: Tensor) -> Tensor:
    """Copy a result into a tensor like x, without the columns that _rows has added."""
    return empty_output(x).copy_(result[..., : x.shape[-1]].reshape(x.shape))
