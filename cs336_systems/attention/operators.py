"""Attention as PyTorch operators: opaque to torch.compile, and batched by vmap."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.differentiation import backward_by, save_for_backward
from cs336_systems.attention.options import SCHEMA, Options

Function = Callable[..., Any]

FORWARD_TENSORS, BACKWARD_TENSORS = 3, 7
"""Arguments of the operators before options: q, k, v; grad_o, q, k, v, o, lse, grad_lse."""

_library = torch.library.Library("cs336_systems", "FRAGMENT")


def define_operators(name: str, implementations: Mapping[str, tuple[Function, Function]]) -> None:
    """Define torch.ops.cs336_systems.NAME_forward and NAME_backward, which torch.compile can differentiate.

    Args:
        name: prefix of both.
        implementations: by dispatch key, a forward(q, k, v, options) to the output and L, and a
            backward(grad_o, q, k, v, o, lse, grad_lse, options) to the gradients of q, k, v and, if there are any,
            sinks. CUDA implementations must launch on the tensors' device, even if another one is current.
    """
    forward_name, backward_name = f"cs336_systems::{name}_forward", f"cs336_systems::{name}_backward"
    _library.define(f"{name}_forward(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor)")
    saved = "Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse"
    _library.define(f"{name}_backward(Tensor grad_o, {saved}, Tensor? grad_lse, {SCHEMA}) -> Tensor[]")
    for key, (forward, backward) in implementations.items():
        _library.impl(f"{name}_forward", with_options(forward, FORWARD_TENSORS), key)
        _library.impl(f"{name}_backward", with_options(backward, BACKWARD_TENSORS), key)
    torch.library.register_fake(forward_name, with_options(_forward_shapes, FORWARD_TENSORS))
    torch.library.register_fake(backward_name, with_options(_backward_shapes, BACKWARD_TENSORS))
    forward_operator, backward_operator = (
        getattr(torch.ops.cs336_systems, f"{name}_{kind}") for kind in ("forward", "backward")
    )
    torch.library.register_vmap(forward_name, _as_one_batch(forward_operator))
    torch.library.register_vmap(backward_name, _as_one_batch(backward_operator))
    torch.library.register_autograd(forward_name, backward_by(backward_operator), setup_context=save_for_backward)


def with_options(function: Function, tensors: int) -> Function:
    """Make a function of `tensors` tensors and Options accept an operator's arguments, which end with its fields."""
    return lambda *arguments: function(*arguments[:tensors], Options(*arguments[tensors:]))


def empty_output(x: Tensor) -> Tensor:
    """Allocate a tensor like x, in its memory layout if its last axis is contiguous."""
    output = torch.empty_like(x)
    return output if output.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def softmax_scale(d: int, scale: float | None) -> float:
    """The factor of the scores: 1 / √d unless another one is given."""
    return 1 / math.sqrt(d) if scale is None else float(scale)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    return empty_output(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _backward_shapes(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, grad_lse: Tensor | None, options: Options
) -> list[Tensor]:
    sinks = options.sinks
    return [*map(empty_output, (q, k, v)), *([] if sinks is None else [torch.empty_like(sinks)])]


def _as_one_batch(operator: Function) -> Callable[..., Any]:
    """Run an operator under vmap: the new axis is merged into the batch axis, the first axis of every tensor except
    sinks and bounds.
    """

    def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        size = info.batch_size
        if any(isinstance(x, Tensor) and x.dim() == 1 for x in arguments):
            raise NotImplementedError("flash_attention does not support sinks or packed documents under vmap.")

        def join(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            return (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

        results = operator(*map(join, arguments, in_dims))
        return type(results)(x.unflatten(0, (size, x.shape[0] // size)) for x in results), type(results)([0]) * len(
            results
        )

    return batched
