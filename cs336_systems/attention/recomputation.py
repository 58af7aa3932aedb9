"""The backward pass by recomputation in compiled PyTorch, as in the handout."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from cs336_systems.attention.autocast import without_autocast


def _recompute_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute equations 13 to 19 of the handout on whole matrices; matmuls in the inputs' dtype, sums in fp32."""
    softmax_scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.transpose(-2, -1)).to(lse.dtype) * softmax_scale
    if is_causal:
        offs_m = torch.arange(q.shape[-2], device=q.device)
        offs_n = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(offs_n > offs_m[:, None], -torch.inf)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # P = 0 where all scores are -inf
    p = torch.exp(scores - lse[..., None])
    dv = p.to(q.dtype).transpose(-2, -1) @ grad_o
    dp = grad_o @ v.transpose(-2, -1)
    delta = (o.to(lse.dtype) * grad_o).sum(-1, keepdim=True)  # D = rowsum(O * dO)
    ds = (p * (dp - delta) * softmax_scale).to(q.dtype)
    return ds @ k, ds.transpose(-2, -1) @ q, dv


@functools.cache
def _compiled_gradients() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Compile on first use: importing torch.compile takes a second."""
    return torch.compile(_recompute_gradients)


def attention_gradients(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v from L, [..., n_queries]; memory is quadratic in the sequence length."""
    gradients = _recompute_gradients if torch.compiler.is_compiling() else _compiled_gradients()
    with without_autocast(q):
        return gradients(grad_o, q, k, v, o, lse, is_causal)
