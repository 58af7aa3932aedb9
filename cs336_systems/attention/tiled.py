"""FlashAttention-2 in plain PyTorch, tile by tile, for readers and for devices without Triton."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.autocast import without_autocast
from cs336_systems.attention.differentiation import Gradients, once
from cs336_systems.attention.operators import empty_output, softmax_scale
from cs336_systems.attention.options import DEFAULTS, Options, Window, documents, sink_gradient, window_of
from cs336_systems.attention.recomputation import attention_gradients

BLOCK_M = 64  # queries per tile
BLOCK_N = 64  # keys per tile


class TiledFlashAttention(torch.autograd.Function):
    """FlashAttention-2: apply(q, k, v, is_causal=False), any leading axes, no score matrix in the forward pass.

    On a CPU the backward pass has no score matrix either. On a GPU, or compiled, it computes whole matrices, as in the
    handout.
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
        o, lse = tiled_forward(q, k, v, Options(is_causal))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute the gradients by recomputation from L."""
        q, k, v, o, lse = ctx.saved_tensors
        if q.is_cuda or torch.compiler.is_compiling():
            return *once(attention_gradients, grad_o, q, k, v, o, lse, ctx.is_causal), None
        return *once(tiled_backward, grad_o, q, k, v, o, lse, None, Options(ctx.is_causal)), None


def tiled_forward(q: Tensor, k: Tensor, v: Tensor, options: Options = DEFAULTS) -> tuple[Tensor, Tensor]:
    """Compute Algorithm 1 of FlashAttention-2.

    Args:
        q: queries, [..., heads, n_queries, d].
        k: keys, [..., n_keys, d], with as many heads or fewer, each then shared by neighbouring heads of q.
        v: values, like the keys.
        options: see Options.

    Returns:
        The output, like q, and its log-sum-exp L, [..., n_queries], natural logarithm, fp32 (fp64 for inputs in fp64).
    """
    o = empty_output(q)
    lse = torch.empty(q.shape[:-1], dtype=_accumulator_dtype(q), device=q.device)
    for queries, keys in documents(options, q.shape[-2], k.shape[-2]):
        part = q[..., queries, :], k[..., keys, :], v[..., keys, :]
        _forward_document((o[..., queries, :], lse[..., queries]), part, options)
    return o, lse


def _forward_document(outputs: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor, Tensor], options: Options) -> None:
    """Write the output and L of one document."""
    o, lse = outputs
    q, k, v = inputs
    window = window_of(options, q.shape[-2], k.shape[-2])
    with without_autocast(q):
        for start_m in range(0, q.shape[-2], BLOCK_M):
            tile = slice(start_m, start_m + BLOCK_M)
            o[..., tile, :], lse[..., tile] = _forward_tile(q[..., tile, :], k, v, start_m, window, options)


def tiled_backward(
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None = None,
    options: Options = DEFAULTS,
) -> list[Tensor]:
    """Compute Algorithm 2 of FlashAttention-2: gradients of q, k, v and, if there are any, sinks, each in its dtype.

    Args:
        grad_o: gradient of the output.
        q: as in tiled_forward, like k, v and options.
        k: keys.
        v: values.
        o: output of tiled_forward.
        lse: its L.
        grad_lse: gradient of L; zero if None.
        options: the forward pass's options.
    """
    dq = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
    dk, dv = empty_output(k), empty_output(v)
    delta = (o.to(lse.dtype) * grad_o).sum(-1)  # D = rowsum(O * dO)
    if grad_lse is not None:
        delta -= grad_lse
    of_sinks = [] if options.sinks is None else [sink_gradient(options.sinks, lse, delta)]
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # P = 0 where all scores are -inf
    with without_autocast(q):
        for queries, keys in documents(options, q.shape[-2], k.shape[-2]):
            gradients = dq[..., queries, :], dk[..., keys, :], dv[..., keys, :]
            part = grad_o[..., queries, :], q[..., queries, :], k[..., keys, :], v[..., keys, :]
            _backward_document(gradients, part, (lse[..., queries], delta[..., queries]), options)
    return [empty_output(q).copy_(dq), dk, dv, *of_sinks]


def _backward_document(
    gradients: Gradients,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    statistics: tuple[Tensor, Tensor],
    options: Options,
) -> None:
    """Write the gradients of one document, whose dq is initially zero, from its inputs, L and D."""
    dq, dk, dv = gradients
    grad_o, q, k, v = inputs
    lse, delta = statistics
    scale = softmax_scale(q.shape[-1], options.scale)
    window = window_of(options, q.shape[-2], k.shape[-2])
    for start_n in range(0, k.shape[-2], BLOCK_N):
        keys = slice(start_n, start_n + BLOCK_N)
        k_tile, v_tile = (_load_keys(x, keys, q) for x in (k, v))
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        first, end = _visible(start_n, k_tile.shape[-2], q.shape[-2], window.right, window.left)
        for start_m in range(first // BLOCK_M * BLOCK_M, end, BLOCK_M):
            queries = slice(start_m, start_m + BLOCK_M)
            q_tile, do_tile = (x[..., queries, :].to(lse.dtype) for x in (q, grad_o))
            scores = _scores(q_tile * scale, k_tile, options.softcap)
            p = _hide(torch.exp(scores - lse[..., queries, None]), window, start_m, start_n, 0.0)
            dv_tile += p.transpose(-2, -1) @ do_tile
            ds = p * (do_tile @ v_tile.transpose(-2, -1) - delta[..., queries, None]) * scale
            if options.softcap:
                ds *= 1 - (scores / options.softcap) ** 2  # the derivative of tanh
            dk_tile += ds.transpose(-2, -1) @ q_tile
            dq[..., queries, :] += ds @ k_tile
        dk[..., keys, :], dv[..., keys, :] = (_sum_shared(x, k) for x in (dk_tile, dv_tile))


def _accumulator_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matmuls and sums: fp32, or fp64 for inputs in fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def _forward_tile(
    q_tile: Tensor, k: Tensor, v: Tensor, start_m: int, window: Window, options: Options
) -> tuple[Tensor, Tensor]:
    """Compute attention of one tile of queries, [..., rows, d], the first with index start_m, over all visible keys.

    Returns:
        The output tile, [..., rows, d], and its log-sum-exp L, [..., rows], natural logarithm.
    """
    first, end = _visible(start_m, q_tile.shape[-2], k.shape[-2], *window)
    q_tile = q_tile.to(_accumulator_dtype(q_tile)) * softmax_scale(q_tile.shape[-1], options.scale)
    acc = torch.zeros_like(q_tile)  # output before its division by row_sum
    lowest = torch.finfo(q_tile.dtype).min
    row_max = torch.full(q_tile.shape[:-1], lowest, dtype=q_tile.dtype, device=q_tile.device)  # m
    row_sum = torch.zeros_like(row_max)  # l
    if options.sinks is not None:  # the first score, whose value is zero
        row_max = torch.maximum(row_max, options.sinks.to(row_max.dtype)[:, None])
        row_sum = torch.exp(options.sinks[:, None] - row_max)
    for start_n in range(first // BLOCK_N * BLOCK_N, end, BLOCK_N):
        keys = slice(start_n, min(start_n + BLOCK_N, end))
        k_tile, v_tile = (_load_keys(x, keys, q_tile) for x in (k, v))
        scores = _hide(_scores(q_tile, k_tile, options.softcap), window, start_m, start_n, -torch.inf)
        new_max = torch.maximum(row_max, scores.amax(-1))
        p = torch.exp(scores - new_max[..., None])
        correction = torch.exp(row_max - new_max)
        row_sum = correction * row_sum + p.sum(-1)
        acc = correction[..., None] * acc + p @ v_tile
        row_max = new_max
    # A row without probabilities (all scores are -inf, or it sees no key) is zero, as in SDPA, and its L is -inf.
    return acc / row_sum.masked_fill(row_sum == 0, 1)[..., None], row_max + row_sum.log()


def _visible(start: int, rows: int, n: int, before: int | None, after: int | None) -> tuple[int, int]:
    """Return the first of n positions that any of some rows sees, from start - before on, and the end of the visible
    ones.
    """
    first = 0 if before is None else max(start - before, 0)
    return first, n if after is None else min(start + rows + after, n)


def _scores(q_tile: Tensor, k_tile: Tensor, softcap: float | None) -> Tensor:
    """Compute scores of a tile of scaled queries and a tile of keys, [..., rows, columns]."""
    scores = q_tile @ k_tile.transpose(-2, -1)
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def _hide(x: Tensor, window: Window, start_m: int, start_n: int, value: float) -> Tensor:
    """Replace scores of keys from start_n on that queries from start_m on do not see, [..., rows, columns], with a
    value.
    """
    rows, columns = x.shape[-2:]
    left, right = window
    offs_m = torch.arange(start_m, start_m + rows, device=x.device)[:, None]
    offs_n = torch.arange(start_n, start_n + columns, device=x.device)
    if right is not None and start_n + columns > start_m + right + 1:
        x = x.masked_fill(offs_n > offs_m + right, value)
    if left is not None and start_n + left < start_m + rows - 1:
        x = x.masked_fill(offs_n < offs_m - left, value)
    return x


def _load_keys(x: Tensor, keys: slice, q: Tensor) -> Tensor:
    """Load a tile of keys or values in the accumulators' dtype, with as many heads as the queries have."""
    tile = x[..., keys, :].to(_accumulator_dtype(x))
    return tile if x.shape[:-2] == q.shape[:-2] else tile.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


def _sum_shared(gradient: Tensor, k: Tensor) -> Tensor:
    """Sum a tile's gradient over the heads of q that share a head of k."""
    return gradient if gradient.shape[:-2] == k.shape[:-2] else gradient.unflatten(-3, (k.shape[-3], -1)).sum(-3)
