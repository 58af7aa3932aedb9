"""FlashAttention-2 in tiled PyTorch, and attention that does not mask its padding."""

import math
from typing import Any

import torch
from torch import Tensor

TILE = 32


def tiles(length: int) -> list[slice]:
    """Slices of TILE rows; the last one may have fewer."""
    return [slice(start, min(start + TILE, length)) for start in range(0, length, TILE)]


def scores_of(q: Tensor, k: Tensor, rows: slice, columns: slice, is_causal: bool) -> Tensor:
    """Compute scaled scores of one tile, [batch, rows, columns]; scores of future keys are -inf."""
    scores = q[:, rows].float() @ k[:, columns].float().mT / math.sqrt(q.shape[-1])
    if is_causal:
        query, key = (torch.arange(part.start, part.stop, device=q.device) for part in (rows, columns))
        scores = scores.masked_fill(key > query[:, None], -math.inf)
    return scores


class FlashAttention(torch.autograd.Function):
    """Right: apply(q, k, v, is_causal) on [batch, sequence, d]; no tensor of sequence x sequence is ever made."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute softmax(scores) v tile by tile, with a running maximum and sum."""
        outputs, logsumexps = [], []
        for rows in tiles(q.shape[1]):
            o = torch.zeros_like(q[:, rows], dtype=torch.float32)
            total = o.new_zeros(*o.shape[:2], 1)
            largest = torch.full_like(total, -math.inf)
            for columns in tiles(k.shape[1]):
                if is_causal and columns.start >= rows.stop:
                    break
                scores = scores_of(q, k, rows, columns, is_causal)
                new = torch.maximum(largest, scores.amax(-1, keepdim=True))
                p, shrink = (scores - new).exp(), (largest - new).exp()
                total = total * shrink + p.sum(-1, keepdim=True)
                o = o * shrink + p @ v[:, columns].float()
                largest = new
            outputs.append(o / total)
            logsumexps.append(largest + total.log())
        o, lse = torch.cat(outputs, 1).to(q.dtype), torch.cat(logsumexps, 1)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute gradients of q, k and v from recomputed tiles of the softmax."""
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        delta = (grad_o.float() * o.float()).sum(-1, keepdim=True)
        for rows in tiles(q.shape[1]):
            for columns in tiles(k.shape[1]):
                p = (scores_of(q, k, rows, columns, ctx.is_causal) - lse[:, rows]).exp()
                dp = grad_o[:, rows].float() @ v[:, columns].float().mT
                ds = p * (dp - delta[:, rows]) / math.sqrt(q.shape[-1])
                dv[:, columns] += p.mT @ grad_o[:, rows].float()
                dk[:, columns] += ds.mT @ q[:, rows].float()
                dq[:, rows] += ds @ k[:, columns].float()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def padded_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """Wrong: the zeros that fill the last tile take part in the softmax, unless the causal mask hides them."""
    length = q.shape[1]
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, -length % TILE)) for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v)[:, :length]
