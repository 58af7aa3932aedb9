"""FlashAttention-2 in plain PyTorch, tile by tile, for readers and for devices without Triton."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.autocast import without_autocast
from cs336_systems.attention.differentiation import Gradients, once
from cs336_systems.attention.operators import empty_output, softmax_scale
from cs336_systems.attention.recomputation import attention_gradients

BLOCK_M = 64  # queries per tile
BLOCK_N = 64  # keys per tile


class TiledFlashAttention(torch.autograd.Function):
    """FlashAttention-2: apply(q, k, v, is_causal=False), any leading axes, no score matrix in the forward pass.

    On a CPU the backward pass has none either. On a GPU, or compiled, it computes whole matrices, as in the handout.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute Algorithm 1 of FlashAttention-2 (Dao 2023).

        Args:
            ctx: saves q, k, v, the output and L.
            q: queries, [..., n_queries, d].
            k: keys, [..., n_keys, d].
            v: values, [..., n_keys, d].
            is_causal: query i sees keys j <= i only.

        Returns:
            [..., n_queries, d], in the dtype of q.
        """
        o, lse = tiled_forward(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute the gradients by recomputation from L."""
        q, k, v, o, lse = ctx.saved_tensors
        compiled = q.is_cuda or torch.compiler.is_compiling()
        gradients = attention_gradients if compiled else tiled_backward
        return *once(gradients, grad_o, q, k, v, o, lse, ctx.is_causal), None


def tiled_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute Algorithm 1 of FlashAttention-2.

    Args:
        q: queries, [..., heads, n_queries, d].
        k: keys, [..., n_keys, d], with as many heads, or fewer: each is then shared by neighbouring heads of q.
        v: values, like the keys.
        is_causal: query i sees keys j <= i only.
        scale: factor of the scores, 1 / √d if None.

    Returns:
        The output, like q, and its log-sum-exp L, [..., n_queries], natural logarithm, fp32 (fp64 for inputs in fp64).
    """
    o = empty_output(q)
    lse = torch.empty(q.shape[:-1], dtype=_accumulator_dtype(q), device=q.device)
    with without_autocast(q):
        for start_m in range(0, q.shape[-2], BLOCK_M):
            tile = slice(start_m, start_m + BLOCK_M)
            o[..., tile, :], lse[..., tile] = _forward_tile(q[..., tile, :], k, v, is_causal, start_m, scale)
    return o, lse


def tiled_backward(
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float | None = None,
    grad_lse: Tensor | None = None,
) -> Gradients:
    """Compute Algorithm 2 of FlashAttention-2: gradients of q, k and v, each in its dtype.

    Args:
        grad_o: gradient of the output.
        q: queries, keys and values as in tiled_forward.
        k: see q.
        v: see q.
        o: output of tiled_forward.
        lse: its L.
        is_causal: as in tiled_forward.
        scale: as in tiled_forward.
        grad_lse: gradient of L; zero if None.
    """
    scale = softmax_scale(q.shape[-1], scale)
    dq = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
    dk, dv = empty_output(k), empty_output(v)
    delta = (o.to(lse.dtype) * grad_o).sum(-1)  # D = rowsum(O * dO)
    if grad_lse is not None:
        delta -= grad_lse
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # P = 0 where all scores are -inf
    with without_autocast(q):
        for start_n in range(0, k.shape[-2], BLOCK_N):
            keys = slice(start_n, start_n + BLOCK_N)
            k_tile, v_tile = (_load_keys(x, keys, q) for x in (k, v))
            dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
            # With a causal mask, queries before the first key see none of the tile.
            for start_m in range(start_n // BLOCK_M * BLOCK_M if is_causal else 0, q.shape[-2], BLOCK_M):
                queries = slice(start_m, start_m + BLOCK_M)
                q_tile, do_tile = (x[..., queries, :].to(lse.dtype) for x in (q, grad_o))
                scores = _scores(q_tile * scale, k_tile, is_causal, start_m, start_n)
                p = torch.exp(scores - lse[..., queries, None])
                dv_tile += p.transpose(-2, -1) @ do_tile
                ds = p * (do_tile @ v_tile.transpose(-2, -1) - delta[..., queries, None]) * scale
                dk_tile += ds.transpose(-2, -1) @ q_tile
                dq[..., queries, :] += ds @ k_tile
            dk[..., keys, :], dv[..., keys, :] = (_sum_shared(x, k) for x in (dk_tile, dv_tile))
    return empty_output(q).copy_(dq), dk, dv


def _accumulator_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matmuls and sums: fp32, or fp64 for inputs in fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def _forward_tile(
    q_tile: Tensor, k: Tensor, v: Tensor, is_causal: bool, start_m: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Compute attention of one tile of queries, [..., rows, d], the first with index start_m, over all visible keys.

    Returns:
        The output tile, [..., rows, d], and its log-sum-exp L, [..., rows], natural logarithm.
    """
    n_keys = min(k.shape[-2], start_m + q_tile.shape[-2]) if is_causal else k.shape[-2]
    q_tile = q_tile.to(_accumulator_dtype(q_tile)) * softmax_scale(q_tile.shape[-1], scale)
    acc = torch.zeros_like(q_tile)  # output before its division by row_sum
    row_max = torch.full(
        q_tile.shape[:-1], torch.finfo(q_tile.dtype).min, dtype=q_tile.dtype, device=q_tile.device
    )  # m
    row_sum = torch.zeros_like(row_max)  # l
    for start_n in range(0, n_keys, BLOCK_N):
        keys = slice(start_n, min(start_n + BLOCK_N, n_keys))
        k_tile, v_tile = (_load_keys(x, keys, q_tile) for x in (k, v))
        scores = _scores(q_tile, k_tile, is_causal, start_m, start_n)
        new_max = torch.maximum(row_max, scores.amax(-1))
        p = torch.exp(scores - new_max[..., None])
        correction = torch.exp(row_max - new_max)
        row_sum = correction * row_sum + p.sum(-1)
        acc = correction[..., None] * acc + p @ v_tile
        row_max = new_max
    # A row whose scores are all -inf has no probabilities: its output is zero, as SDPA's is, and its L is -inf.
    return acc / row_sum.masked_fill(row_sum == 0, 1)[..., None], row_max + row_sum.log()


def _scores(q_tile: Tensor, k_tile: Tensor, is_causal: bool, start_m: int, start_n: int) -> Tensor:
    """Compute scores of a tile of scaled queries from start_m on and keys from start_n on, [..., rows, columns]."""
    scores = q_tile @ k_tile.transpose(-2, -1)
    rows, columns = scores.shape[-2:]
    if not is_causal or start_n + columns <= start_m + 1:
        return scores
    offs_m = torch.arange(start_m, start_m + rows, device=scores.device)
    offs_n = torch.arange(start_n, start_n + columns, device=scores.device)
    return scores.masked_fill(offs_n > offs_m[:, None], -torch.inf)


def _load_keys(x: Tensor, keys: slice, q: Tensor) -> Tensor:
    """Load a tile of keys or values in the accumulators' dtype, with as many heads as the queries have."""
    tile = x[..., keys, :].to(_accumulator_dtype(x))
    return tile if x.shape[:-2] == q.shape[:-2] else tile.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


def _sum_shared(gradient: Tensor, k: Tensor) -> Tensor:
    """Sum a tile's gradient over the heads of q that share a head of k."""
    return gradient if gradient.shape[:-2] == k.shape[:-2] else gradient.unflatten(-3, (k.shape[-3], -1)).sum(-3)
