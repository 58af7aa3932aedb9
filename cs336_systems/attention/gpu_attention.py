"""The fastest kernels that take the inputs, Hopper's or Triton's, as PyTorch operators and an autograd function.

Which ones is decided when an operator runs, so that a compiled graph needs no part in it. Both save the same L, so one
pass may take the one and the other the other.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from cs336_systems.attention import triton_launch
from cs336_systems.attention.launcher import CACHE_SIZE
from cs336_systems.attention.operators import define_operators

TESTED_TRITON = ("3.6.0",)
"""Versions of Triton whose Gluon the tests of the Hopper kernels have passed with, on a GPU: it is experimental."""


@lru_cache(CACHE_SIZE)
def _kernels(device: int, dtype: torch.dtype, q_shape: torch.Size, k_shape: torch.Size) -> Any:
    """The module with attention_forward and attention_backward for these inputs."""
    if triton.__version__ in TESTED_TRITON:
        from cs336_systems.attention.hopper import launch

        if launch.takes(device, dtype, q_shape, k_shape) and launch.is_faster(q_shape, k_shape):
            return launch
    return triton_launch


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    device = q.get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _forward(q, k, v, is_causal)
    return _kernels(device, q.dtype, q.shape, k.shape).attention_forward(q, k, v, is_causal)


def _backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    device = q.get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _backward(grad_o, q, k, v, o, lse, is_causal)
    deterministic = torch.are_deterministic_algorithms_enabled()
    kernels = triton_launch if deterministic else _kernels(device, q.dtype, q.shape, k.shape)
    return kernels.attention_backward(grad_o, q, k, v, o, lse, is_causal)


define_operators("attention", _forward, _backward)


class GpuFlashAttention(torch.autograd.Function):
    """FlashAttention on a GPU, forward and backward: apply(q, k, v, is_causal=False).

    q is [batch, n_queries, d] or [batch, heads, n_queries, d], k and v have n_keys instead; the output is like q.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Saves q, k, v, the output and L, [..., n_queries], natural logarithm."""
        # torch.compile needs operators; without it the dispatcher would only add to what a launch costs the host.
        forward = torch.ops.cs336_systems.attention_forward if torch.compiler.is_compiling() else _forward
        o, lse = forward(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Recomputation from L."""
        backward = torch.ops.cs336_systems.attention_backward if torch.compiler.is_compiling() else _backward
        q, k, v, o, lse = ctx.saved_tensors
        return *backward(grad_o, q, k, v, o, lse, ctx.is_causal), None
