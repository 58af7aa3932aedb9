"""FlashAttention-2 as a Triton kernel, and a variant that does not mask incomplete tiles."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64


@triton.jit
def attend(
    q_pointer,
    k_pointer,
    v_pointer,
    o_pointer,
    lse_pointer,
    length,
    d,
    scale,
    is_causal: tl.constexpr,
    masked: tl.constexpr,
    width: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Compute one tile of rows of o, [heads, length, d], and of the scores' logsumexp, [heads, length]."""
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    offset = tl.program_id(1).to(tl.int64) * length
    numbers = tl.arange(0, width)
    ours = (rows[:, None] < length) & (numbers < d)
    places = (offset + rows[:, None]) * d + numbers
    q = tl.load(q_pointer + places, mask=ours, other=0.0)
    o = tl.zeros((tile_rows, width), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    largest = tl.full((tile_rows,), float("-inf"), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * tile_rows, length) if is_causal else length
    for start in range(0, end, tile_columns):
        columns = start + tl.arange(0, tile_columns)
        theirs = (columns[:, None] < length) & (numbers < d)
        others = (offset + columns[:, None]) * d + numbers
        k = tl.load(k_pointer + others, mask=theirs, other=0.0)
        v = tl.load(v_pointer + others, mask=theirs, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if masked:
            scores = tl.where(columns < length, scores, float("-inf"))
        if is_causal:
            scores = tl.where(columns <= rows[:, None], scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp(scores - new[:, None])
        shrink = tl.exp(largest - new)
        total = total * shrink + tl.sum(p, 1)
        o = o * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        largest = new
    tl.store(o_pointer + places, (o / total[:, None]).to(q.dtype), mask=ours)
    tl.store(lse_pointer + offset + rows, largest + tl.log(total), mask=rows < length)


class TritonFlashAttention(torch.autograd.Function):
    """Right: apply(q, k, v, is_causal) on [batch, sequence, d]; the backward pass is PyTorch's, in fp32."""

    masked = True

    @classmethod
    def forward(cls, ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Launch a program for each tile of rows of each head."""
        q, k, v = (x.contiguous() for x in (q, k, v))
        heads, length, d = q.shape
        o, lse = torch.empty_like(q), q.new_empty(heads, length, dtype=torch.float32)
        width = max(16, triton.next_power_of_2(d))
        grid = (triton.cdiv(length, ROWS), heads)
        attend[grid](q, k, v, o, lse, length, d, d**-0.5, is_causal, cls.masked, width, ROWS, COLUMNS)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute gradients of q, k and v from the recomputed softmax."""
        q, k, v, o, lse = (x.float() for x in ctx.saved_tensors)
        grad, scale = grad_o.float(), q.shape[-1] ** -0.5
        p = (q @ k.mT * scale - lse[..., None]).exp()
        if ctx.is_causal:
            p = p.tril()
        ds = p * (grad @ v.mT - (grad * o).sum(-1, keepdim=True)) * scale
        gradients = ds @ k, ds.mT @ q, p.mT @ grad
        return *(x.to(grad_o.dtype) for x in gradients), None


class UnmaskedFlashAttention(TritonFlashAttention):
    """Wrong if tiles do not divide the sequence: the zeros in the last tile take part in the softmax."""

    masked = False
