"""Rotary position embeddings of queries and keys, from the output of one matmul for q, k and v, in one pass."""

import torch
from torch import Tensor

from cs336_systems.training.dispatch import HAS_TRITON, check_dtype, runs_kernels

if HAS_TRITON:
    from cs336_systems.training.triton_rope import RotateQKV


def rotate_qkv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    interleaved: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split the output of one matmul into heads of q, k and v, with q and k rotated by their position.

    On a GPU, q and k are rotated in place: qkv is overwritten, and the results are views of it. One Triton kernel reads
    and writes only q and k; in the backward pass, it collects the gradients of q, k and v in a tensor like qkv.

    Args:
        qkv: [batch, sequence, (num_heads + 2 num_kv_heads) d_head]: heads of q, of k, of v; bf16, fp16 or fp32. Nothing
            else may need its values: pass a matmul's output.
        cos: [context, d_head / 2], context >= sequence; fp32, since bf16 would blur neighbouring positions.
        sin: like cos.
        num_heads: heads of q.
        num_kv_heads: heads of k, and of v; num_heads if None.
        interleaved: pair i of a head's features are 2i and 2i + 1, as in the paper; otherwise i and i + d_head / 2, as
            in Hugging Face's models.

    Returns:
        q, k and v, [batch, heads, sequence, d_head] each. In q and k, pair i at position p is rotated by the angle with
        cosine cos[p, i] and sine sin[p, i].

    Raises:
        ValueError: shapes do not match, or qkv is not floating-point.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.
    """
    num_kv_heads = num_kv_heads or num_heads
    _check(qkv, cos, sin, num_heads, num_kv_heads)
    if runs_kernels(qkv) and not (cos.requires_grad or sin.requires_grad):
        q, k, v = RotateQKV.apply(qkv, cos, sin, num_heads, num_kv_heads, interleaved)
        return q, k, v
    heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1)).transpose(1, 2)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return _formula(q, cos, sin, interleaved), _formula(k, cos, sin, interleaved), v


def _formula(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]
    pairs, axis = ((-1, 2), -1) if interleaved else ((2, -1), -2)
    a, b = x.unflatten(-1, pairs).unbind(axis)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), axis).flatten(-2).to(x.dtype)


def _check(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int) -> None:
    check_dtype("qkv", qkv)
    if num_heads < 1 or num_kv_heads < 1:
        raise ValueError(f"num_heads is {num_heads}, and num_kv_heads {num_kv_heads}; allowed: whole numbers from 1")
    heads = num_heads + 2 * num_kv_heads
    if qkv.dim() != 3 or qkv.shape[-1] % (2 * heads):
        raise ValueError(f"qkv must be [batch, sequence, {heads} heads of even width], got shape {list(qkv.shape)}.")
    pairs = qkv.shape[-1] // (2 * heads)
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.shape[1] != pairs or table.shape[0] < qkv.shape[1]:
            raise ValueError(
                f"{name} must be [context >= {qkv.shape[1]}, d_head / 2 = {pairs}], got shape {list(table.shape)}."
            )
