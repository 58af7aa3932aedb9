"""Rounding a matrix to FP8 in Triton: the scale, the rows and the columns, in two reads of the matrix."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.launcher import on_device

PARTS = 512  # programs, each of which finds the largest element of a part
AMAX_BLOCK = 4096
TILE_M, TILE_N, NUM_WARPS = 64, 128, 8


@triton.jit
def _amax_kernel(
    x,  # pointer, [n]
    amax,  # pointer, [programs] fp32, out
    n,
    BLOCK: tl.constexpr,
):
    """Find the largest absolute value of every programs-th block."""
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offset = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.abs(tl.load(x + offset, mask=offset < n, other=0.0).to(tl.float32)))
    tl.store(amax + tl.program_id(0), tl.max(largest, 0))


@triton.jit
def _cast_kernel(
    x,  # pointer, [rows, columns]
    amax,  # pointer, [PARTS] fp32
    by_row,  # pointer, [rows, columns] FP8, out
    by_column,  # pointer, [columns, rows] FP8, out
    scale,  # pointer, one fp32 number, out
    rows,
    columns,
    limit,  # the largest number of the format
    smallest,  # the smallest amax
    PARTS: tl.constexpr,
    TRANSPOSED: tl.constexpr,  # whether by_column is written
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Round one tile of the matrix; the grid is (row tiles, column tiles)."""
    largest = tl.maximum(tl.max(tl.load(amax + tl.arange(0, PARTS)), 0), smallest)
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(scale, tl.div_rn(largest, limit))
    factor = tl.div_rn(limit, largest)  # a division per element would take longer than reading and writing it
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)[:, None]
    column = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)[None, :]
    inside = (row < rows) & (column < columns)
    tile = tl.load(x + row.to(tl.int64) * columns + column, mask=inside, other=0.0).to(tl.float32)
    tile = tl.clamp(tile * factor, -limit, limit, propagate_nan=tl.PropagateNan.ALL).to(by_row.dtype.element_ty)
    tl.store(by_row + row.to(tl.int64) * columns + column, tile, mask=inside)
    if TRANSPOSED:
        tl.store(by_column + column.to(tl.int64) * rows + row, tile, mask=inside)


@on_device
def round_matrix(
    x: Tensor, dtype: torch.dtype, smallest: float, transposed: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Round a matrix to FP8 with one scale.

    Args:
        x: [rows, columns], contiguous, multiples of 16.
        dtype: the FP8 format.
        smallest: the largest element counts as at least this.
        transposed: whether the columns are returned.

    Returns:
        [rows, columns] in FP8, its transpose [columns, rows], contiguous, or None, and the factor that brings them
        back, one fp32 number.
    """
    rows, columns = x.shape
    amax = torch.empty(PARTS, dtype=torch.float32, device=x.device)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    by_row = torch.empty_like(x, dtype=dtype)
    by_column = torch.empty(columns, rows, dtype=dtype, device=x.device) if transposed else None
    _amax_kernel[(PARTS,)](x, amax, x.numel(), AMAX_BLOCK, num_warps=8)
    _cast_kernel[(triton.cdiv(rows, TILE_M), triton.cdiv(columns, TILE_N))](
        x,
        amax,
        by_row,
        by_row if by_column is None else by_column,
        scale,
        rows,
        columns,
        torch.finfo(dtype).max,
        smallest,
        PARTS,
        transposed,
        TILE_M,
        TILE_N,
        num_warps=NUM_WARPS,
    )
    return by_row, by_column, scale
