"""Attention kernels as PyTorch operators, which torch.compile keeps whole in its graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from cs336_systems.attention.launcher import empty_output

Function = Callable[..., tuple[Tensor, ...]]

_library = torch.library.Library("cs336_systems", "FRAGMENT")


def define_operators(name: str, forward: Function, backward: Function) -> None:
    """Make torch.ops.cs336_systems.NAME_forward and NAME_backward of functions that launch kernels on CUDA tensors.

    forward(q, k, v, is_causal) gives the output and L, backward(grad_o, q, k, v, o, lse, is_causal) the gradients of
    q, k and v. Both must launch on the tensors' device, whichever is the current one.
    """
    _library.define(f"{name}_forward(Tensor q, Tensor k, Tensor v, bool is_causal) -> (Tensor, Tensor)")
    _library.define(
        f"{name}_backward(Tensor grad_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool is_causal)"
        " -> (Tensor, Tensor, Tensor)"
    )
    for kind, function, shapes in (("forward", forward, _forward_shapes), ("backward", backward, _backward_shapes)):
        _library.impl(f"{name}_{kind}", function, "CUDA")
        torch.library.register_fake(f"cs336_systems::{name}_{kind}", shapes)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return empty_output(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _backward_shapes(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_output(q), empty_output(k), empty_output(v)
