"""Linear maps of one input as one matmul, without copies of their weights or gradients."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems.attention.autocast import autocast_inputs, without_autocast
from cs336_systems.attention.differentiation import only_once
from cs336_systems.training.dispatch import check_whole, needs_operators


@torch.compiler.disable  # type: ignore[untyped-decorator]
def packed_linear(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Compute x @ cat(weights).T as one matmul; another one computes the weights' gradients.

    Under torch.compile it runs eagerly.

    Args:
        x: [..., d_in].
        weights: of bias-free linear maps, [d_out, d_in] each, one dtype and device. Parameters are moved next to each
            other once, and stay the same objects. Weights that share memory with other tensors stay in place and are
            copied in each call, such as gathered weights or those in an optimizer's buffer.

    Returns:
        [..., sum of d_out].

    Raises:
        ValueError: there are no weights, they differ in dtype, device or d_in, or are sharded.
        RuntimeError: the weights have to be moved while a CUDA graph is being captured.
    """
    if needs_operators(x, *weights):
        check_whole("packed_linear", x, *weights)
        _check(weights)
        return torch.nn.functional.linear(x, torch.cat(list(weights)))
    x, packed = autocast_inputs(x, pack_rows(weights))
    output: Tensor = _PackedLinear.apply(x, packed, *weights)
    return output


def pack_rows(weights: Sequence[Tensor]) -> Tensor:
    """Return one matrix that consists of the weights, without a gradient: in their own memory, or a copy.

    The first call moves parameters into one storage, and so does the next call after they were separated by Module.to,
    deepcopy or load_state_dict(assign=True). They stay the same Parameter objects. In the capture of a CUDA graph,
    which would replay the move each time, it raises a RuntimeError.
    """
    packed = _rows_of(weights)
    if packed is not None:
        return packed
    _check(weights)
    packed = _copy(weights)
    if not can_move(weights):
        return packed
    if packed.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("Weights are not packed yet: run the model once before capturing it in a CUDA graph.")
    for weight, part in zip(weights, packed.split([len(w) for w in weights]), strict=True):
        weight.data = part
    moved = _rows_of(weights)  # as in the next call, since a selective checkpoint compares both calls' operators
    return packed if moved is None else moved


def can_move(weights: Sequence[Tensor]) -> bool:
    """Whether weights may be moved next to each other.

    They have to be parameters of one kind whose memory no other tensor shares: that tensor would keep the old values.
    """
    if torch.is_inference_mode_enabled() or needs_operators() or len(set(weights)) < len(weights):
        return False
    if any(type(weight) is not nn.Parameter for weight in weights) or len(_kinds(weights)) > 1:
        return False
    storages = [weight.untyped_storage() for weight in weights]
    sharing = Counter(storage._cdata for storage in storages)
    # The storage's Python object counts as one use.
    return all(torch._C._storage_Use_Count(address) == count + 1 for address, count in sharing.items())


def _rows_of(weights: Sequence[Tensor]) -> Tensor | None:
    """Return one matrix of all weights' rows, in their own memory; None if they are apart."""
    if not weights or weights[0].dim() != 2:
        return None
    first, dtype, columns = weights[0], weights[0].dtype, weights[0].shape[1]
    address, rows = first.data_ptr(), 0
    for weight in weights:
        if weight.data_ptr() != address or weight.dtype != dtype or not weight.is_contiguous():
            return None
        count, *rest = weight.shape
        if rest != [columns]:
            return None
        address += weight.nbytes
        rows += count
    storage = first.untyped_storage()
    if address > storage.data_ptr() + storage.nbytes():  # neighbours by chance, in several allocations
        return None
    return first.detach().as_strided((rows, columns), (columns, 1))


def _copy(weights: Sequence[Tensor]) -> Tensor:
    return torch.cat([weight.detach() for weight in weights])


def _check(weights: Sequence[Tensor]) -> None:
    if not weights:
        raise ValueError("there are 0 packed weights; allowed: 1 or more")
    if len(_kinds(weights)) > 1 or any(weight.dim() != 2 for weight in weights):
        given = " and ".join(f"{w.dtype} {list(w.shape)} on {w.device}" for w in weights)
        raise ValueError(f"packed weights are {given}; allowed: [d_out, d_in] each, of one d_in, dtype and device")


def _kinds(weights: Sequence[Tensor]) -> set[tuple[Any, ...]]:
    return {(weight.dtype, weight.device, weight.shape[1:]) for weight in weights}


class _PackedLinear(torch.autograd.Function):
    """packed_linear as an autograd function: apply(x, packed, *weights), packed being the weights in one matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, packed if packed.dtype != weights[0].dtype else None, *weights)
        with without_autocast(x):
            return torch.nn.functional.linear(x, packed)

    @staticmethod
    @only_once("packed_linear")
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the weights' gradients in one buffer; its rows become the parameters' gradients without a copy."""
        x, packed, *weights = ctx.saved_tensors
        x_needs, _, *weights_need = ctx.needs_input_grad
        parts: Sequence[Tensor | None] = [None] * len(weights)
        with without_autocast(x):
            if any(weights_need):
                rows = d_output.reshape(-1, d_output.shape[-1]), x.reshape(-1, x.shape[-1])
                parts = (rows[0].T @ rows[1]).split([len(w) for w in weights])
            dx = None
            if x_needs:  # last, so that the norm that reads it next finds it in the L2 cache
                if packed is None:
                    packed = _rows_of(weights)
                dx = d_output @ (_copy(weights) if packed is None else packed)
        return dx, None, *(part if needs else None for part, needs in zip(parts, weights_need, strict=True))
