"""FlashAttention-2 in plain PyTorch: the algorithm, tile by tile, for reading and for devices without Triton."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK_M = 64  # queries per tile
BLOCK_N = 64  # keys per tile


class TiledFlashAttention(torch.autograd.Function):
    """FlashAttention-2: apply(q, k, v, is_causal=False), any leading axes, no score matrix in the forward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Algorithm 1 of FlashAttention-2 (Dao 2023).

        Args:
            ctx: saves q, k, v, the output and L.
            q: queries, [..., n_queries, d].
            k: keys, [..., n_keys, d].
            v: values, [..., n_keys, d].
            is_causal: query i sees keys j <= i only.

        Returns:
            [..., n_queries, d], in the dtype of q.
        """
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[:-1], dtype=_accumulator_dtype(q), device=q.device)
        for start_m in range(0, q.shape[-2], BLOCK_M):
            tile = slice(start_m, start_m + BLOCK_M)
            o[..., tile, :], lse[..., tile] = _forward_tile(q[..., tile, :], k, v, start_m if is_causal else None)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Recomputation from L, as in equations 13 to 19 of the handout."""
        q, k, v, o, lse = ctx.saved_tensors
        return *attention_gradients(grad_o, q, k, v, o, lse, ctx.is_causal), None


def _accumulator_dtype(x: Tensor) -> torch.dtype:
    """Dtype of sums: fp32, or fp64 for inputs in fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def _forward_tile(q_tile: Tensor, k: Tensor, v: Tensor, start_m: int | None) -> tuple[Tensor, Tensor]:
    """One tile of queries, [..., rows, d], against all keys; start_m is its first query's index if causal, else None.

    Returns:
        The output tile, [..., rows, d], and its log-sum-exp L, [..., rows], natural logarithm.
    """
    dtype = _accumulator_dtype(q_tile)
    rows, d = q_tile.shape[-2:]
    n_keys = k.shape[-2] if start_m is None else min(k.shape[-2], start_m + rows)
    q_tile = q_tile.to(dtype) / math.sqrt(d)
    acc = torch.zeros_like(q_tile)  # output before its division by row_sum
    row_max = torch.full(q_tile.shape[:-1], -torch.inf, dtype=dtype, device=q_tile.device)  # m
    row_sum = torch.zeros_like(row_max)  # l
    for start_n in range(0, n_keys, BLOCK_N):
        k_tile, v_tile = (x[..., start_n : min(start_n + BLOCK_N, n_keys), :].to(dtype) for x in (k, v))
        scores = q_tile @ k_tile.transpose(-2, -1)
        if start_m is not None and start_n + BLOCK_N > start_m:
            offs_n = torch.arange(start_n, start_n + scores.shape[-1], device=q_tile.device)
            offs_m = torch.arange(start_m, start_m + rows, device=q_tile.device)
            scores = scores.masked_fill(offs_n > offs_m[:, None], -torch.inf)
        new_max = torch.maximum(row_max, scores.amax(-1))
        p = torch.exp(scores - new_max[..., None])
        correction = torch.exp(row_max - new_max)
        row_sum = correction * row_sum + p.sum(-1)
        acc = correction[..., None] * acc + p @ v_tile
        row_max = new_max
    return acc / row_sum[..., None], row_max + row_sum.log()


def _recompute_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 13 to 19 of the handout, on whole matrices; products in the inputs' dtype, sums in fp32."""
    softmax_scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.transpose(-2, -1)).to(lse.dtype) * softmax_scale
    if is_causal:
        offs_m = torch.arange(q.shape[-2], device=q.device)
        offs_n = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(offs_n > offs_m[:, None], -torch.inf)
    p = torch.exp(scores - lse[..., None])
    dv = p.to(q.dtype).transpose(-2, -1) @ grad_o
    dp = grad_o @ v.transpose(-2, -1)
    delta = (o.to(lse.dtype) * grad_o).sum(-1, keepdim=True)  # D = rowsum(O * dO)
    ds = (p * (dp - delta) * softmax_scale).to(q.dtype)
    return ds @ k, ds.transpose(-2, -1) @ q, dv


@functools.cache
def _compiled_gradients() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Made on first use: torch.compile takes a second to import."""
    return torch.compile(_recompute_gradients)


def attention_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by recomputation from L, [..., n_queries]: compiled on a GPU.

    On a CPU compilation takes some 20 seconds and needs a C++ compiler, for a path that exists to be read and tested.
    """
    compiled = q.is_cuda and not torch.compiler.is_compiling()
    gradients = _compiled_gradients() if compiled else _recompute_gradients
    return gradients(grad_o, q, k, v, o, lse, is_causal)
