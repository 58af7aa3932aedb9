"""Linear maps of one input as one matmul, without copies of their weights or gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cs336_systems.attention.autocast import autocast_inputs, without_autocast


@torch.compiler.disable  # type: ignore[untyped-decorator]
def packed_linear(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Compute x @ cat(weights).T as one matmul, whose gradients are rows of one matmul's output.

    Under torch.compile it runs eagerly.

    Args:
        x: [..., d_in].
        weights: of bias-free linear maps, [d_out, d_in] each, one dtype and device; see pack_rows.

    Returns:
        [..., sum of d_out].
    """
    x, packed = autocast_inputs(x, pack_rows(weights))
    output: Tensor = _PackedLinear.apply(x, packed, *weights)
    return output


def pack_rows(weights: Sequence[Tensor]) -> Tensor:
    """Return one matrix that consists of the weights, in their own memory, without a gradient.

    The first call moves the weights into one storage; so does the next one after they were moved apart, by Module.to,
    deepcopy or load_state_dict(assign=True). They stay the same Parameter objects. If a weight occurs twice, the
    matrix is a copy.

    Raises:
        RuntimeError: a CUDA graph is being captured, which would replay the move each time.
    """
    packed = _rows_of(weights)
    if packed is not None:
        return packed
    if len(set(weights)) < len(weights):  # one weight cannot lie in two places
        return torch.cat([weight.detach() for weight in weights])
    if weights[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("Weights are not packed yet: run the model once before capturing it in a CUDA graph.")
    packed = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, packed.split([len(w) for w in weights]), strict=True):
        weight.data = part
    return packed


def _rows_of(weights: Sequence[Tensor]) -> Tensor | None:
    """Return one matrix whose rows are those of all weights, in their own memory; None if they are apart."""
    first = weights[0]
    storage, address, rows = first.untyped_storage().data_ptr(), first.data_ptr(), 0
    for weight in weights:
        apart = weight.untyped_storage().data_ptr() != storage or weight.data_ptr() != address
        if apart or not weight.is_contiguous() or weight.dtype != first.dtype:
            return None
        address += weight.numel() * weight.element_size()
        rows += len(weight)
    return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1))


class _PackedLinear(torch.autograd.Function):
    """packed_linear as an autograd function: apply(x, packed, *weights), packed being the weights in one matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, *weights: Tensor) -> Tensor:
        """Save x and the packed weights."""
        ctx.save_for_backward(x, packed)
        ctx.rows = [len(w) for w in weights]
        with without_autocast(x):
            return torch.nn.functional.linear(x, packed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the weights' gradients in one buffer; its rows become the parameters' gradients without a copy."""
        x, packed = ctx.saved_tensors
        x_needs, _, *weights_need = ctx.needs_input_grad
        parts: Sequence[Tensor | None] = [None] * len(weights_need)
        with without_autocast(x):
            if any(weights_need):
                parts = (d_output.flatten(0, -2).T @ x.flatten(0, -2)).split(ctx.rows)
            dx = d_output @ packed if x_needs else None  # last: the norm that reads it next finds it in the L2 cache
        return dx, None, *(part if needs else None for part, needs in zip(parts, weights_need, strict=True))
