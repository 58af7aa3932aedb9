"""The Triton kernels as PyTorch operators and as autograd functions."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.differentiation import once
from cs336_systems.attention.launcher import on_device
from cs336_systems.attention.operators import define_operators
from cs336_systems.attention.options import Options
from cs336_systems.attention.recomputation import attention_gradients
from cs336_systems.attention.triton_launch import attention_backward, attention_forward

_forward, _backward = on_device(attention_forward), on_device(attention_backward)
define_operators("flash", {"CUDA": (_forward, _backward)})


class TritonFlashAttention(torch.autograd.Function):
    """FlashAttention-2, forward and backward in Triton: apply(q, k, v, is_causal=False).

    q is [batch, n_queries, d] or [batch, heads, n_queries, d], k and v have n_keys instead; the output is like q.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute Algorithm 1 of FlashAttention-2; save q, k, v, the output and L, [..., n_queries]."""
        # torch.compile requires operators; otherwise the dispatcher would only add overhead to a launch.
        if torch.compiler.is_compiling():
            o, lse = torch.ops.cs336_systems.flash_forward(q, k, v, is_causal)
        else:
            o, lse = _forward(q, k, v, Options(is_causal))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute Algorithm 2 of FlashAttention-2."""
        q, k, v, o, lse = ctx.saved_tensors
        if torch.compiler.is_compiling():
            flash_backward = torch.ops.cs336_systems.flash_backward
            return *once(flash_backward, grad_o, q, k, v, o, lse, None, ctx.is_causal), None
        return *once(_backward, grad_o, q, k, v, o, lse, None, Options(ctx.is_causal)), None


class TritonForwardCompiledBackward(TritonFlashAttention):
    """The same forward kernel with the handout's backward pass: compiled PyTorch, quadratic in memory."""

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute equations 13 to 19 of the handout."""
        q, k, v, o, lse = ctx.saved_tensors
        return *once(attention_gradients, grad_o, q, k, v, o, lse, ctx.is_causal), None
