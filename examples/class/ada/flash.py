"""Attention as the formula says."""

import math

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """Right: q, k and v are [batch, sequence, d]."""
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)
