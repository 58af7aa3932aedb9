"""Rotary position embeddings of queries and keys, from the output of one matmul for q, k and v, in one pass."""

import torch
from torch import Tensor

from cs336_systems.training.dispatch import HAS_TRITON, runs_kernels

if HAS_TRITON:
    from cs336_systems.training.triton_rope import RotateQKV


def rotate_qkv(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the output of one matmul into heads of q, k and v, with q and k rotated by their position.

    On a GPU, q and k are rotated in place: qkv is overwritten, and the results are views of it. One Triton kernel reads
    and writes q and k only; in the backward pass, one collects the gradients of q, k and v in a tensor like qkv.

    Args:
        qkv: [batch, sequence, 3 d_model]: q, k, v, each of num_heads heads; bf16, fp16 or fp32. Nothing else may need
            its values: pass a matmul's output.
        cos: [context, d_head / 2], context >= sequence; fp32, since bf16 would blur neighbouring positions.
        sin: like cos.
        num_heads: heads of q, of k and of v.

    Returns:
        q, k and v, [batch, num_heads, sequence, d_head] each. Features 2i and 2i + 1 of position p are rotated by the
        angle that cos[p, i] and sin[p, i] belong to.

    Raises:
        ValueError: shapes do not match.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.
    """
    _check(qkv, cos, sin, num_heads)
    if runs_kernels(qkv):
        q, k, v = RotateQKV.apply(qkv, cos, sin, num_heads)
        return q, k, v
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return _formula(q, cos, sin), _formula(k, cos, sin), v


def _formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    sequence = x.shape[-2]
    cos, sin = cos[:sequence], sin[:sequence]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def _check(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> None:
    if qkv.dim() != 3 or qkv.shape[-1] % (6 * num_heads):
        raise ValueError(
            f"qkv must be [batch, sequence, 3 d_model] with {num_heads} heads of even width, got {list(qkv.shape)}."
        )
    pairs = qkv.shape[-1] // (6 * num_heads)
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.shape[1] != pairs or table.shape[0] < qkv.shape[1]:
            raise ValueError(
                f"{name} must be [context >= {qkv.shape[1]}, d_head / 2 = {pairs}], got {list(table.shape)}."
            )
