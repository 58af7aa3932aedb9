"""Textbook scaled dot-product attention: the reference that every kernel is compared with."""

import math

import torch
from torch import Tensor

from cs336_systems.ranges import named_range


def plain_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """Compute softmax(q kᵀ / √d) v, with the whole score matrix in memory.

    Args:
        q: queries, [..., n_queries, d].
        k: keys, [..., n_keys, d].
        v: values, [..., n_keys, d].
        is_causal: query i sees keys j <= i only, even if n_queries and n_keys differ.

    Returns:
        [..., n_queries, d], in the dtype of the inputs (under autocast, in the autocast dtype).

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    with named_range("scores"):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    with named_range("softmax"):
        if is_causal:
            queries = torch.arange(q.shape[-2], device=q.device)
            keys = torch.arange(k.shape[-2], device=k.device)
            scores = scores.masked_fill(keys > queries[:, None], -torch.inf)
        weights = torch.softmax(scores, dim=-1)
    with named_range("final product"):
        return weights @ v
