"""Linear layers whose three matmuls run in FP8, twice as fast as bf16 on tensor cores.

    left = use_fp8(model)     # before the blocks are compiled
    model.compile()

Operands are scaled to the range of FP8 by their current largest element, so nothing has to be calibrated; weights,
activations and gradients stay bf16 outside of the matmuls. Scaling and casting are plain PyTorch, which the compiler
fuses with what surrounds them: uncompiled, they cost more than FP8 saves.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; the division of work is torchao's.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
MULTIPLE = 16
"""FP8 matmuls of PyTorch require axes that are multiples of this."""
SMALLEST_AMAX = 1e-12
"""Keeps the scale of a tensor of zeros positive."""
CAPABILITY = (8, 9)
"""The least compute capability that multiplies in FP8."""


def fp8_linear(x: Tensor, weight: Tensor, *, rowwise: bool = False, gradient_dtype: torch.dtype = E5M2) -> Tensor:
    """x @ weight.T in FP8; so are the matmuls of its backward pass.

    On a device other than CUDA the operands are rounded to FP8 in the same way, and multiplied in fp32.

    Args:
        x: [..., d_in], bf16; 16 · n tokens in all.
        weight: [d_out, d_in], bf16, both multiples of 16.
        rowwise: one scale per row of each operand (along the axis that is summed over) rather than one per tensor: an
            outlier then costs only its row precision. It takes more time.
        gradient_dtype: FP8 format of the output's gradients: torch.float8_e5m2 has more range, torch.float8_e4m3fn
            more precision. Values and weights are float8_e4m3fn.

    Returns:
        [..., d_out] in the dtype of x.

    Raises:
        ValueError: an axis is not a multiple of 16, or gradient_dtype is not an FP8 format.
    """
    if gradient_dtype not in (E4M3, E5M2):
        raise ValueError(f"gradient_dtype is {gradient_dtype}; allowed: {E5M2}, {E4M3}")
    rows = x.flatten(0, -2)
    for name, size in (("tokens", len(rows)), ("d_in", weight.shape[1]), ("d_out", weight.shape[0])):
        if size % MULTIPLE:
            raise ValueError(f"FP8 matmul with {size} {name}; allowed: multiples of {MULTIPLE}")
    y: Tensor = _Fp8Linear.apply(rows, weight.to(x.dtype), rowwise, gradient_dtype)
    return y.unflatten(0, x.shape[:-1])


class Fp8Linear(nn.Linear):
    """nn.Linear with `fp8_linear` as its matmul; same parameters, under the same names."""

    rowwise = False
    gradient_dtype = E5M2

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], in the dtype of x, or of autocast."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        y = fp8_linear(x, self.weight, rowwise=self.rowwise, gradient_dtype=self.gradient_dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def use_fp8(
    model: nn.Module, *, keep: Collection[str] = ("lm_head",), rowwise: bool = False, gradient_dtype: torch.dtype = E5M2
) -> dict[str, str]:
    """Make the linear layers of a model run in FP8, in place; parameters, names and optimizers stay the same.

    Args:
        model: on its device.
        keep: names of layers to leave as they are, by default the output head, whose error reaches the loss directly.
        rowwise: see `fp8_linear`.
        gradient_dtype: see `fp8_linear`.

    Returns:
        the linear layers that were left as they are, by name, each with the reason.

    Raises:
        ValueError: a name in keep is no linear layer of the model, or no layer is left to convert.
        RuntimeError: the GPU has no FP8 tensor cores.
    """
    _check_device(model)
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    if unknown := set(keep) - set(layers) - {"lm_head"}:
        raise ValueError(f"keep names {sorted(unknown)}; allowed: linear layers of the model")
    left = {name: "named by keep" for name in layers if name in keep}
    for name, layer in layers.items():
        odd = [size for size in (layer.in_features, layer.out_features) if size % MULTIPLE]
        if odd and name not in left:
            left[name] = f"{odd[0]} features are not a multiple of {MULTIPLE}"
        if name not in left:
            layer.__class__ = Fp8Linear
            layer.rowwise, layer.gradient_dtype = rowwise, gradient_dtype  # type: ignore[assignment]
    if len(left) == len(layers):
        raise ValueError(f"no linear layer of the model can run in FP8: {left or 'it has none'}")
    return left


class _Fp8Linear(torch.autograd.Function):
    """apply(x [tokens, d_in], weight, rowwise, gradient_dtype)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rowwise: bool, gradient_dtype: torch.dtype) -> Tensor:
        scale_x, scale_w = _scale(x, E4M3, rowwise), _scale(weight, E4M3, rowwise)
        ctx.save_for_backward(x, weight, scale_x, scale_w)
        ctx.rowwise, ctx.gradient_dtype = rowwise, gradient_dtype
        return _matmul(_round(x, scale_x, E4M3), _round(weight, scale_w, E4M3), scale_x, scale_w, x.dtype, fast=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, scale_x, scale_w = ctx.saved_tensors
        rowwise, dtype = ctx.rowwise, ctx.gradient_dtype
        grad_x = grad_w = None
        scale_g = None if rowwise else _scale(grad, dtype, rowwise)
        if ctx.needs_input_grad[0]:  # [tokens, d_out] @ [d_out, d_in]
            grad_x = _product(grad, weight.T, scale_g, None if rowwise else scale_w, dtype)
        if ctx.needs_input_grad[1]:  # [d_out, tokens] @ [tokens, d_in]
            grad_w = _product(grad.T, x.T, scale_g, None if rowwise else scale_x, dtype)
        return grad_x, grad_w, None, None


def _product(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a @ b.T of gradients [m, k] and values [n, k]; without scales, one per row is computed."""
    scale_a = _scale(a, dtype, True) if scale_a is None else scale_a
    scale_b = _scale(b, E4M3, True) if scale_b is None else scale_b
    # Fast accumulation keeps 14 bits of the sums: enough for the forward pass, not for gradients.
    return _matmul(_round(a, scale_a, dtype), _round(b, scale_b, E4M3), scale_a, scale_b, a.dtype, fast=False)


def _scale(x: Tensor, dtype: torch.dtype, rowwise: bool) -> Tensor:
    """What the rounded [rows, columns] is to be multiplied by: fp32, one number, or [rows, 1]."""
    largest = x.abs().amax(-1, keepdim=True) if rowwise else x.abs().amax()
    return largest.float().clamp(min=SMALLEST_AMAX) / torch.finfo(dtype).max


def _round(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x / scale in FP8, rows contiguous in memory."""
    limit = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-limit, limit).to(dtype).contiguous()


def _matmul(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype, *, fast: bool) -> Tensor:
    """(scale_a a) @ (scale_b b).T of FP8 matrices [m, k] and [n, k], summed in fp32."""
    if not a.is_cuda:
        return ((a.float() * scale_a) @ (b.float() * scale_b).T).to(dtype)
    return torch._scaled_mm(a, b.T, scale_a, scale_b.T, out_dtype=dtype, use_fast_accum=fast)


def _check_device(model: nn.Module) -> None:
    device = next(model.parameters()).device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise RuntimeError(f"{name} does not multiply in FP8; it takes compute capability 8.9 or more (Ada, Hopper)")
