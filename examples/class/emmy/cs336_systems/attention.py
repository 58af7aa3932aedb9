"""FlashAttention-2 without a backward pass."""

import math

import torch

TILE = 16


class FlashAttention(torch.autograd.Function):
    """Forward only, over tiles of keys; is_causal is ignored, as the handout allows here."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        """Attend with an online softmax: q, k and v are [batch, sequence, d]."""
        o, total = torch.zeros_like(q), q.new_zeros(q.shape[:-1])
        largest = torch.full_like(total, -math.inf)
        for keys, values in zip(k.split(TILE, 1), v.split(TILE, 1), strict=True):
            scores = q @ keys.mT / math.sqrt(q.shape[-1])
            new = torch.maximum(largest, scores.amax(-1))
            p, scale = (scores - new[..., None]).exp(), (largest - new).exp()
            total = scale * total + p.sum(-1)
            o = scale[..., None] * o + p @ values
            largest = new
        return o / total[..., None]
