"""FlashAttention-2 in plain PyTorch: the algorithm, tile by tile, for reading and for devices without Triton."""

import functools
import math

import torch
from torch import Tensor

QUERIES = 64  # rows of a tile of queries
KEYS = 64  # rows of a tile of keys


class TiledFlashAttention(torch.autograd.Function):
    """FlashAttention-2: apply(q, k, v, is_causal=False), any leading axes, no score matrix in the forward pass."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
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
        lse = torch.empty(q.shape[:-1], dtype=_accumulator(q), device=q.device)
        for start in range(0, q.shape[-2], QUERIES):
            tile = slice(start, start + QUERIES)
            o[..., tile, :], lse[..., tile] = _attend(q[..., tile, :], k, v, start if is_causal else None)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx, grad_o):
        """Recomputation from L, as in equations 13 to 19 of the handout."""
        return *attention_gradients(grad_o, *ctx.saved_tensors, ctx.is_causal), None


def _accumulator(x: Tensor) -> torch.dtype:
    """Dtype of sums: fp32, or fp64 for inputs in fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def _attend(query: Tensor, k: Tensor, v: Tensor, first_query: int | None) -> tuple[Tensor, Tensor]:
    """One tile of queries, [..., rows, d], against all keys; first_query is its index if causal, else None.

    Returns:
        The output tile, [..., rows, d], and its log-sum-exp L, [..., rows], natural logarithm.
    """
    dtype = _accumulator(query)
    rows, d = query.shape[-2:]
    n_keys = k.shape[-2] if first_query is None else min(k.shape[-2], first_query + rows)
    query = query.to(dtype) / math.sqrt(d)
    acc = torch.zeros_like(query)  # output before its division by row_sum
    row_max = torch.full(query.shape[:-1], -torch.inf, dtype=dtype, device=query.device)  # m
    row_sum = torch.zeros_like(row_max)  # l
    for start in range(0, n_keys, KEYS):
        key, value = (x[..., start : min(start + KEYS, n_keys), :].to(dtype) for x in (k, v))
        scores = query @ key.transpose(-2, -1)
        if first_query is not None and start + KEYS > first_query:
            keys = torch.arange(start, start + scores.shape[-1], device=query.device)
            queries = torch.arange(first_query, first_query + rows, device=query.device)
            scores = scores.masked_fill(keys > queries[:, None], -torch.inf)
        new_max = torch.maximum(row_max, scores.amax(-1))
        probabilities = torch.exp(scores - new_max[..., None])
        correction = torch.exp(row_max - new_max)
        row_sum = correction * row_sum + probabilities.sum(-1)
        acc = correction[..., None] * acc + probabilities @ value
        row_max = new_max
    return acc / row_sum[..., None], row_max + row_sum.log()


def _recompute_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 13 to 19 of the handout, on whole matrices; products in the inputs' dtype, sums in fp32."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.transpose(-2, -1)).to(lse.dtype) * scale
    if is_causal:
        queries = torch.arange(q.shape[-2], device=q.device)
        keys = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(keys > queries[:, None], -torch.inf)
    probabilities = torch.exp(scores - lse[..., None])
    dv = probabilities.to(q.dtype).transpose(-2, -1) @ grad_o
    dp = grad_o @ v.transpose(-2, -1)
    delta = (o.to(lse.dtype) * grad_o).sum(-1, keepdim=True)  # D = rowsum(O * dO)
    ds = (probabilities * (dp - delta) * scale).to(q.dtype)
    return ds @ k, ds.transpose(-2, -1) @ q, dv


@functools.cache
def _compiled_gradients():
    """Made at first use: torch.compile takes a second to import."""
    return torch.compile(_recompute_gradients)


def attention_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by recomputation from L, [..., n_queries]: compiled on a GPU.

    On a CPU compilation takes some 20 seconds and a C++ compiler, for a path that is there to be read and tested.
    """
    compiled = q.is_cuda and not torch.compiler.is_compiling()
    gradients = _compiled_gradients() if compiled else _recompute_gradients
    return gradients(grad_o, q, k, v, o, lse, is_causal)
