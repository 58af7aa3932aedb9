"""A SwiGLU feed-forward network in FP8; activation and gradients are rounded where they are computed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cs336_systems.attention.differentiation import only_once
from cs336_systems.training.dispatch import HAS_TRITON
from cs336_systems.training.fp8_formats import E4M3
from cs336_systems.training.fp8_operands import Operand, check_operands, matmul, round_operand
from cs336_systems.training.packed_linear import pack_rows
from cs336_systems.training.spare_sms import leave_sms

if HAS_TRITON:
    from cs336_systems.training.triton_fp8 import CURRENT, GRADIENT, INPUT, WEIGHT
    from cs336_systems.training.triton_fp8_swiglu import swiglu_fp8, swiglu_fp8_backward


class Scaling(NamedTuple):
    """The gradients' format, and the histories of the packed gate and up, and of down; None: current scaling."""

    gradient_dtype: torch.dtype
    gate_up: Any
    down: Any


def fp8_swiglu(x: Tensor, gate_up: Sequence[Tensor], down: Tensor, scaling: Scaling) -> Tensor:
    """down(silu(gate(x)) * up(x)) in FP8, on kernels; the hidden layer is recomputed in the backward pass.

    x is [..., d_model], gate and up are [d_ff, d_model], down is [d_model, d_ff], all bf16 or all fp16. All require
    gradients, or none.
    """
    check_operands(x, gate_up)
    y: Tensor = _Fp8SwiGLU.apply(x.flatten(0, -2), pack_rows(gate_up), scaling, down, *gate_up)[0]
    return y.unflatten(0, x.shape[:-1])


class _Fp8SwiGLU(torch.autograd.Function):
    """apply(x [tokens, d_model], packed [2 d_ff, d_model], scaling, down, gate, up) to y and nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, scaling: Scaling, down: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        trains = any(ctx.needs_input_grad)
        first, second = scaling.gate_up, scaling.down
        a = _round(x, E4M3, first, INPUT, trains)
        b = _round(packed, E4M3, first, WEIGHT, trains)
        gate_up = matmul(a.rows, a.scale, b.rows, b.scale, x.dtype, fast=True)
        hidden, hidden_scale = swiglu_fp8(gate_up, _amax(second, INPUT))
        c = _round(down, E4M3, second, WEIGHT, trains)
        y = matmul(hidden, hidden_scale, c.rows, c.scale, x.dtype, fast=True)
        empty = x.new_empty(0)  # an output, which gives access to the inputs without keeping any
        ctx.save_for_backward(a.columns, a.scale, b.columns, b.scale, c.columns, c.scale, gate_up, hidden_scale, empty)
        ctx.set_materialize_grads(False)
        ctx.scaling, ctx.sizes = scaling, [len(w) for w in weights]
        return y, empty

    @staticmethod
    @only_once("fp8_swiglu")
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, scale_x, packed, scale_packed, down, scale_down, gate_up, hidden_scale, _ = ctx.saved_tensors
        dtype, first, second = ctx.scaling
        g = _round(grad, dtype, second, GRADIENT, True)
        assert g.columns is not None
        with leave_sms(grad):
            d_hidden = matmul(g.rows, g.scale, down, scale_down, grad.dtype, fast=False)
            d = swiglu_fp8_backward(gate_up, d_hidden, hidden_scale, dtype, _amax(first, GRADIENT))
            d_down = matmul(g.columns, g.scale, d.hidden, hidden_scale, grad.dtype, fast=False)
            together = matmul(d.columns, d.scale, x, scale_x, grad.dtype, fast=False)
            dx = matmul(d.rows, d.scale, packed, scale_packed, grad.dtype, fast=False)
        return dx, None, None, d_down, *together.split(ctx.sizes)


def _round(x: Tensor, dtype: torch.dtype, history: Any, operand: int, columns: bool) -> Operand:
    return round_operand(x, dtype, False, columns=columns, amax=_amax(history, operand))


def _amax(history: Any, operand: int) -> Any:
    return CURRENT if history is None else history[operand]
