"""Operands of FP8 matmuls: matrices rounded by rows and by columns, and their scales."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cs336_systems.training.dispatch import HAS_TRITON, check_whole, needs_operators, runs_kernels
from cs336_systems.training.fp8_formats import SMALLEST_AMAX

if HAS_TRITON:
    from cs336_systems.training.triton_fp8 import CURRENT, round_matrix

MULTIPLE = 16
"""FP8 matmuls of PyTorch require axes that are multiples of this."""


class Operand(NamedTuple):
    """A matrix in FP8, by rows and by columns: an FP8 matmul sums over the contiguous axis of both operands."""

    rows: Tensor
    """[m, k] FP8."""
    scale: Tensor
    """Factor that restores the rows, fp32: one number, or [m, 1]."""
    columns: Tensor | None
    """[k, m] FP8, if asked for."""
    column_scale: Tensor
    """One number, or [k, 1]."""


def check_operands(x: Tensor, weights: Sequence[Tensor]) -> None:
    """Check that an input, [..., d_in], and weights, [d_out, d_in] each, can be multiplied in FP8.

    A ValueError says that an axis is not a multiple of 16, or a weight is sharded; a NotImplementedError, that a
    tensor is a subclass, or this is a transform of torch.func.
    """
    if needs_operators(x, *weights):
        check_whole("fp8_linear", x, *weights)
        raise NotImplementedError("fp8_linear accepts only plain tensors, outside torch.func's transforms.")
    for w in weights:
        if w.dim() != 2 or w.shape[1] != x.shape[-1]:
            raise ValueError(f"x and weight have shapes {list(x.shape)} and {list(w.shape)}; allowed: one d_in")
    tokens = x.shape[:-1].numel()
    sizes = ("tokens", tokens), ("d_in", x.shape[-1]), *(("d_out", len(w)) for w in weights)
    for name, size in sizes:
        if size % MULTIPLE or not size:
            raise ValueError(f"FP8 matmul with {size} {name}; allowed: multiples of {MULTIPLE}")


def rounds_in_kernels(x: Tensor) -> bool:
    """Whether kernels round this tensor."""
    # For fp32 inputs Triton 3.6 stores the columns wrongly.
    return x.dtype is not torch.float32 and runs_kernels(x)


def round_operand(x: Tensor, dtype: torch.dtype, rowwise: bool, *, columns: bool, amax: Any = None) -> Operand:
    """Scale a matrix [m, k] to the range of an FP8 format, and round it.

    `rowwise` scales each row, and each column if `columns` are wanted, separately. Kernels read and write an Amax;
    without one, scaling is current.
    """
    if not rowwise and rounds_in_kernels(x):
        by_row, by_column, scale = round_matrix(x.contiguous(), dtype, columns, amax or CURRENT)
        return Operand(by_row, scale, by_column, scale)
    largest = _largest(x, rowwise)
    by_row, scale = _scaled(x, dtype, largest)
    if not columns:
        return Operand(by_row, scale, None, scale)
    return Operand(by_row, scale, *_scaled(x.T, dtype, _largest(x.T, rowwise) if rowwise else largest))


def _largest(x: Tensor, rowwise: bool) -> Tensor:
    largest = x.abs().amax(-1, keepdim=True) if rowwise else x.abs().amax()
    return largest.float().clamp(min=SMALLEST_AMAX)


def _scaled(x: Tensor, dtype: torch.dtype, largest: Tensor) -> tuple[Tensor, Tensor]:
    """x in FP8, with contiguous rows, scaled so that largest becomes the limit; and the factor that restores it."""
    limit = torch.finfo(dtype).max
    return (x.float() * (limit / largest)).clamp(-limit, limit).to(dtype).contiguous(), largest / limit


def matmul(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, dtype: torch.dtype, *, fast: bool) -> Tensor:
    """(scale_a a) @ (scale_b b).T of FP8 matrices [m, k] and [n, k], summed in fp32.

    Fast accumulation keeps 14 bits of the sums: enough for the forward pass, not for gradients.
    """
    if not a.is_cuda:
        return ((a.float() * scale_a) @ (b.float() * scale_b).T).to(dtype)
    scale = scale_b.T if scale_b.dim() else scale_b
    return torch._scaled_mm(a, b.T, scale_a, scale, out_dtype=dtype, use_fast_accum=fast)
