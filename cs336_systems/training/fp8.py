"""Linear layers whose three matmuls run in FP8, twice as fast as bf16 on tensor cores.

    left = use_fp8(model)

Operands are scaled to the range of FP8 by their current largest element, so nothing has to be calibrated; weights,
activations and gradients stay bf16 outside the matmuls. On a GPU two kernels read an operand twice and write it as the
matmuls need it, by rows and by columns, at memory speed. Under torch.compile, and with a scale per row, this is plain
PyTorch, which the compiler fuses with the surrounding operations.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; the formats and scales follow torchao.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cs336_systems.attention.differentiation import only_once
from cs336_systems.nvidia import compute_capability
from cs336_systems.training.dispatch import HAS_TRITON
from cs336_systems.training.fp8_formats import CAPABILITY, E4M3, E5M2
from cs336_systems.training.fp8_operands import MULTIPLE, check_operands, matmul, round_operand, rounds_in_kernels
from cs336_systems.training.packed_linear import pack_rows
from cs336_systems.training.spare_sms import leave_sms

if HAS_TRITON:
    from cs336_systems.training.triton_fp8 import GRADIENT, INPUT, WEIGHT, AmaxHistory


def fp8_linear(
    x: Tensor, weight: Tensor | Sequence[Tensor], *, rowwise: bool = False, gradient_dtype: torch.dtype = E5M2
) -> Tensor:
    """Compute x @ weight.T in FP8, and also the matmuls of its backward pass.

    On a non-CUDA device the operands are rounded to FP8 in the same way and multiplied in fp32.

    Args:
        x: [..., d_in], bf16 or fp32; 16 · n tokens in total.
        weight: [d_out, d_in], both multiples of 16; or several weights of the same input, for one matmul whose columns
            are the concatenated outputs (see `packed_linear`).
        rowwise: one scale per row of each operand (along the summed axis) instead of one per tensor: an outlier then
            reduces only its row's precision. It takes more time, much more if not compiled.
        gradient_dtype: FP8 format of the output's gradients: torch.float8_e5m2 has more range, torch.float8_e4m3fn more
            precision. Values and weights are float8_e4m3fn.

    Returns:
        [..., d_out] in the dtype of x; with several weights, the sum of their d_out.

    Raises:
        ValueError: an axis is not a multiple of 16, gradient_dtype is not an FP8 format, or a weight is sharded.
        NotImplementedError: inside a transform of torch.func, or its gradients are differentiated.
    """
    if gradient_dtype not in (E4M3, E5M2):
        raise ValueError(f"gradient_dtype is {gradient_dtype}; allowed: {E5M2}, {E4M3}")
    weights = (weight,) if isinstance(weight, Tensor) else tuple(weight)
    return linear(x, weights, Options(rowwise, gradient_dtype), None)


class Options(NamedTuple):
    """How a layer computes in FP8: see `use_fp8`."""

    rowwise: bool = False
    gradient_dtype: torch.dtype = E5M2
    delayed: bool = False


def linear(x: Tensor, weights: Sequence[Tensor], options: Options, history: Any) -> Tensor:
    """fp8_linear with an AmaxHistory for delayed scaling, or None."""
    check_operands(x, weights)
    packed = weights[0].detach() if len(weights) == 1 else pack_rows(weights)
    y: Tensor = _Fp8Linear.apply(x.flatten(0, -2), packed.to(x.dtype), options, history, *weights)[0]
    return y.unflatten(0, x.shape[:-1])


class Fp8Linear(nn.Linear):
    """nn.Linear with `fp8_linear` as its matmul; same parameters, under the same names."""

    options = Options()
    history: Any = None
    """With delayed scaling, the AmaxHistory of the operands, if kernels have run."""

    def begin(self, x: Tensor) -> Any:
        """Begin a forward pass on x: return the AmaxHistory for delayed scaling, or None for current scaling."""
        if not self.options.delayed or not rounds_in_kernels(x):
            return None
        if self.history is None or self.history.device != x.device:
            self.history = AmaxHistory(x.device)
        if torch._C._current_graph_task_id() == -1:  # else a checkpoint's recomputation, with the scales of before
            self.history.advance()
        return self.history

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], in the dtype of x, or of autocast."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        y = linear(x, (self.weight,), self.options, self.begin(x))
        return y if self.bias is None else y + self.bias.to(y.dtype)


def use_fp8(
    model: nn.Module,
    *,
    keep: Collection[str] = ("lm_head",),
    rowwise: bool = False,
    gradient_dtype: torch.dtype = E5M2,
    delayed: bool = False,
) -> dict[str, str]:
    """Make the linear layers of a model run in FP8, in place; parameters, names and optimizers stay the same.

    Args:
        model: on its device; it may have been fused by `fuse`. For the backward pass an FP8 layer always keeps its
            input in FP8, regardless of the options of `fuse`.
        keep: names of layers to leave unchanged, by default the output head, whose error affects the loss directly.
        rowwise: see `fp8_linear`.
        gradient_dtype: see `fp8_linear`.
        delayed: delayed scaling: scales are computed from twice the previous step's largest elements, so operands are
            read once, and SwiGLU's results are rounded where they are computed. Larger elements are clamped. A layer's
            first step uses current scaling, and so do cases without kernels: a CPU, fp32, a compiled model. Scales are
            not part of a state dict.

    Returns:
        the linear layers that do not run in FP8, by name, each with the reason.

    Raises:
        ValueError: a name in keep is not a linear layer of the model, no layer is left to convert, or delayed is
            combined with rowwise.
        RuntimeError: the GPU has no FP8 tensor cores.
    """
    if delayed and rowwise:
        raise ValueError("delayed excludes rowwise: in each step, rows belong to other tokens")
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if unknown := set(keep) - set(layers) - {"lm_head"}:
        raise ValueError(f"keep names {sorted(unknown)}; allowed: linear layers of the model")
    reasons = {name: "named by keep" if name in keep else _obstacle(layer) for name, layer in layers.items()}
    left = {name: reason for name, reason in reasons.items() if reason}
    if not set(layers) - set(left):
        raise ValueError(f"no linear layer of the model can run in FP8: {left or 'it has none'}")
    chosen = [layer for name, layer in layers.items() if name not in left and type(layer) is nn.Linear]
    if not chosen:
        raise ValueError("all layers that can run in FP8 already do; allowed: one call per layer")
    _check_device(chosen[0].weight.device)
    for layer in chosen:
        layer.__class__ = Fp8Linear
        assert isinstance(layer, Fp8Linear)
        layer.options = Options(rowwise, gradient_dtype, delayed)
    return left


def _obstacle(layer: nn.Linear) -> str:
    """Why a layer cannot run in FP8; an empty string if it can."""
    if type(layer) not in (nn.Linear, Fp8Linear):
        return f"is a {type(layer).__qualname__}"
    if "forward" in layer.__dict__:
        return "its forward method was replaced"
    odd = [size for size in (layer.in_features, layer.out_features) if size % MULTIPLE]
    return f"{odd[0]} features are not a multiple of {MULTIPLE}" if odd else ""


class _Fp8Linear(torch.autograd.Function):
    """apply(x [tokens, d_in], packed weight [d_out, d_in], options, history, *weights) to y and nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, options: Options, history: Any, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        need_x, need_w = ctx.needs_input_grad[0], any(ctx.needs_input_grad[4:])
        a = round_operand(x, E4M3, options.rowwise, columns=need_w, amax=history and history[INPUT])
        b = round_operand(packed, E4M3, options.rowwise, columns=need_x, amax=history and history[WEIGHT])
        empty = x.new_empty(0)  # an output, which gives access to the inputs without keeping any
        ctx.save_for_backward(a.columns, a.column_scale, b.columns, b.column_scale, empty)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.history = options, history
        ctx.weights = [(len(w), w.dtype) for w in weights]
        return matmul(a.rows, a.scale, b.rows, b.scale, x.dtype, fast=True), empty

    @staticmethod
    @only_once("fp8_linear")
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, scale_x, weight, scale_w, _ = ctx.saved_tensors
        grad_x = None
        grad_weights: list[Tensor | None] = [None] * len(ctx.weights)
        (rowwise, dtype, _), history = ctx.options, ctx.history
        g = round_operand(grad, dtype, rowwise, columns=x is not None, amax=history and history[GRADIENT])
        with leave_sms(grad):
            if x is not None:  # [d_out, tokens] @ [tokens, d_in]
                assert g.columns is not None
                together = matmul(g.columns, g.column_scale, x, scale_x, grad.dtype, fast=False)
                parts = together.split([rows for rows, _ in ctx.weights])
                needed = ctx.needs_input_grad[4:]
                dtypes = [dtype for _, dtype in ctx.weights]
                grad_weights = [p.to(d) if n else None for p, d, n in zip(parts, dtypes, needed, strict=True)]
            if weight is not None:  # [tokens, d_out] @ [d_out, d_in]
                grad_x = matmul(g.rows, g.scale, weight, scale_w, grad.dtype, fast=False)
        return grad_x, None, None, None, *grad_weights


def _check_device(device: torch.device) -> None:
    if device.type == "cuda" and compute_capability(device) < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise RuntimeError(
            f"{name} has no FP8 matmuls; they need an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper)"
        )
