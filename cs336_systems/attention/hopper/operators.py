"""The Hopper kernels as PyTorch operators and as an autograd function."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.hopper.launch import attention_backward, attention_forward
from cs336_systems.attention.triton_launch import empty_output

_library = torch.library.Library("cs336_systems", "FRAGMENT")
_library.define("hopper_forward(Tensor q, Tensor k, Tensor v, bool is_causal) -> (Tensor, Tensor)")
_library.define(
    "hopper_backward(Tensor grad_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool is_causal)"
    " -> (Tensor, Tensor, Tensor)"
)


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    if q.device.index != torch.cuda.current_device():
        with torch.cuda.device(q.device):
            return attention_forward(q, k, v, is_causal)
    return attention_forward(q, k, v, is_causal)


def _backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.index != torch.cuda.current_device():
        with torch.cuda.device(q.device):
            return attention_backward(grad_o, q, k, v, o, lse, is_causal)
    return attention_backward(grad_o, q, k, v, o, lse, is_causal)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return empty_output(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _backward_shapes(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_output(q), empty_output(k), empty_output(v)


_library.impl("hopper_forward", _forward, "CUDA")
_library.impl("hopper_backward", _backward, "CUDA")
torch.library.register_fake("cs336_systems::hopper_forward", _forward_shapes)
torch.library.register_fake("cs336_systems::hopper_backward", _backward_shapes)


class HopperFlashAttention(torch.autograd.Function):
    """FlashAttention for Hopper, forward and backward: apply(q, k, v, is_causal=False), for inputs that takes() takes.

    q is [batch, n_queries, d] or [batch, heads, n_queries, d], k and v have n_keys instead; the output is like q. The
    gradient of q differs from run to run by the order of its additions.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Saves q, k, v, the output and L, [..., n_queries], natural logarithm."""
        # torch.compile needs operators; without it the dispatcher would only add to what a launch costs the host.
        forward = torch.ops.cs336_systems.hopper_forward if torch.compiler.is_compiling() else _forward
        o, lse = forward(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Recomputation from L."""
        backward = torch.ops.cs336_systems.hopper_backward if torch.compiler.is_compiling() else _backward
        q, k, v, o, lse = ctx.saved_tensors
        return *backward(grad_o, q, k, v, o, lse, ctx.is_causal), None
