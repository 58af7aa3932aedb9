"""SwiGLU's activation in one pass over memory, alone or with the following linear map."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.autocast import autocast_inputs, without_autocast
from cs336_systems.attention.differentiation import only_once
from cs336_systems.training.dispatch import (
    HAS_TRITON,
    check_dtype,
    check_whole,
    needs_operators,
    runs_kernels,
    wide_dtype,
)

if HAS_TRITON:
    from cs336_systems.training.triton_swiglu import SwiGLUActivation, swiglu_backward, swiglu_forward


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) * up, the hidden layer of a SwiGLU feed-forward network.

    On a GPU, each direction is one Triton kernel. It computes in fp32 and rounds once.

    Args:
        gate_up: the output of one matmul for both, [..., 2 d_ff]: gate, then up; bf16, fp16 or fp32.

    Returns:
        [..., d_ff], in the dtype of gate_up.

    Raises:
        ValueError: the last axis has an odd length, or gate_up is not floating-point.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 5.
    """
    _check(gate_up)
    hidden: Tensor = SwiGLUActivation.apply(gate_up) if runs_kernels(gate_up) else _formula(gate_up)
    return hidden


@torch.compiler.disable  # type: ignore[untyped-decorator]
def swiglu_linear(gate_up: Tensor, weight: Tensor) -> Tensor:
    """Compute swiglu(gate_up) @ weight.T without keeping the hidden layer for the backward pass.

    The backward kernel, which reads gate and up anyway, recomputes the hidden layer. In bf16 this saves 2 d_ff bytes of
    memory per token, and writes 2 d_ff more bytes. Under torch.compile it runs eagerly.

    Args:
        gate_up: as for swiglu, [..., 2 d_ff].
        weight: of the linear map, [d_model, d_ff].

    Returns:
        [..., d_model].

    Raises:
        ValueError: the last axis of gate_up has an odd length, gate_up is not floating-point, or the weight is sharded.
    """
    _check(gate_up)
    if needs_operators(gate_up, weight):
        check_whole("swiglu_linear", gate_up, weight)
        return torch.nn.functional.linear(_formula(gate_up), weight)
    gate_up, weight = autocast_inputs(gate_up, weight)
    output: Tensor = _SwiGLULinear.apply(gate_up, weight)
    return output


class _SwiGLULinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up, weight)
        with without_autocast(gate_up):
            hidden = swiglu_forward(gate_up) if runs_kernels(gate_up) else _formula(gate_up)
            return torch.nn.functional.linear(hidden, weight)

    @staticmethod
    @only_once("swiglu_linear")
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Recompute the hidden layer, along with the gradient of gate_up."""
        gate_up, weight = ctx.saved_tensors
        with without_autocast(gate_up):
            d_hidden = d_output @ weight
            if runs_kernels(gate_up):
                d_gate_up, hidden = swiglu_backward(gate_up, d_hidden, recompute=True)
            else:
                d_gate_up, hidden = _formula_backward(gate_up, d_hidden)
            d_weight = None
            if ctx.needs_input_grad[1]:
                d_weight = d_output.reshape(-1, len(weight)).T @ hidden.reshape(-1, weight.shape[1])
        return d_gate_up, d_weight


def _check(gate_up: Tensor) -> None:
    check_dtype("gate_up", gate_up)
    if not gate_up.dim() or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up must be [..., 2 d_ff], got shape {list(gate_up.shape)}.")


def _formula(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.to(wide_dtype(gate_up)).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def _formula_backward(gate_up: Tensor, d_hidden: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = gate_up.detach().requires_grad_()
        hidden = _formula(leaf)
    return torch.autograd.grad(hidden, leaf, d_hidden)[0], hidden.detach()
