"""Triton kernels for add_rms_norm, their launches and their autograd function.

A row is the d_model elements of one token. Rows are contiguous in all tensors.
"""

from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.differentiation import only_once
from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.tiles import Tile, row_tile

BACKWARD_PROGRAMS = 2
"""Programs of the backward pass per SM. Each leaves a row of partial sums of the weight's gradient."""
BACKWARD_STAGES = 3
"""Number of tiles that a program of the backward pass has in flight in shared memory."""
STAGED_SIZE = 16384
"""Number of elements per tensor that always fit into shared memory, over all stages."""


@triton.jit
def add_rms_norm_forward_kernel(
    x,  # pointer, [rows, D]
    delta,  # pointer, [rows, D]; not read without HAS_DELTA
    weight,  # pointer, [D]
    total,  # pointer, [rows, D], out: x + delta; not written without HAS_DELTA
    normed,  # pointer, [rows, D], out
    inverse_rms,  # pointer, [rows] fp32, out
    rows,
    eps,
    D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # D rounded up to a power of two
    LAST_FIRST: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    """Add and normalize one tile of rows; the grid is (row tiles)."""
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_D)
    offsets = row.to(tl.int64)[:, None] * D + column[None, :]
    mask = (row < rows)[:, None] & (column < D)[None, :]
    wide = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
    if HAS_DELTA:
        wide += tl.load(delta + offsets, mask, other=0.0).to(tl.float32)
        rounded = wide.to(total.dtype.element_ty)
        tl.store(total + offsets, rounded, mask)
        wide = rounded.to(tl.float32)  # as the backward pass reads it
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / D + eps)
    tl.store(inverse_rms + row, scale, row < rows)
    weights = tl.load(weight + column, column < D, other=0.0).to(tl.float32)
    tl.store(normed + offsets, (wide * scale[:, None] * weights[None, :]).to(normed.dtype.element_ty), mask)


@triton.jit
def add_rms_norm_backward_kernel(
    d_total,  # pointer, [rows, D]; not read without HAS_D_TOTAL
    d_normed,  # pointer, [rows, D]
    total,  # pointer, [rows, D]
    weight,  # pointer, [D]
    inverse_rms,  # pointer, [rows] fp32
    dx,  # pointer, [rows, D], out
    d_weights,  # pointer, [programs, D] fp32, out: this program's part of the weight's gradient
    rows,
    D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # D rounded up to a power of two
    LAST_FIRST: tl.constexpr,
    HAS_D_TOTAL: tl.constexpr,
    HAS_D_WEIGHT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute the gradients of every programs-th tile of rows; the grid is (programs)."""
    column = tl.arange(0, BLOCK_D)
    weights = tl.load(weight + column, column < D, other=0.0).to(tl.float32)
    d_weight = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    n_tiles = tl.cdiv(rows, BLOCK_ROWS)
    for index in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        tile = n_tiles - 1 - index if LAST_FIRST else index
        row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        offsets = row.to(tl.int64)[:, None] * D + column[None, :]
        mask = (row < rows)[:, None] & (column < D)[None, :]
        scale = tl.load(inverse_rms + row, row < rows, other=0.0)[:, None]
        unit = tl.load(total + offsets, mask, other=0.0).to(tl.float32) * scale
        gradient = tl.load(d_normed + offsets, mask, other=0.0).to(tl.float32)
        d_unit = gradient * weights[None, :]
        projection = tl.sum(d_unit * unit, 1)[:, None] / D
        result = (d_unit - unit * projection) * scale
        if HAS_D_TOTAL:
            result += tl.load(d_total + offsets, mask, other=0.0).to(tl.float32)
        tl.store(dx + offsets, result.to(dx.dtype.element_ty), mask)
        if HAS_D_WEIGHT:
            d_weight += gradient * unit
    if HAS_D_WEIGHT:
        tl.store(d_weights + tl.program_id(0) * D + column, tl.sum(d_weight, 0), column < D)


@triton.jit
def sum_weight_gradients_kernel(
    parts,  # pointer, [n_parts, D] fp32
    result,  # pointer, [D], out
    n_parts,
    D: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Sum some columns over all parts; the grid is (column tiles)."""
    column = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    sums = tl.zeros([BLOCK_PARTS, BLOCK_D], tl.float32)
    for start in range(0, n_parts, BLOCK_PARTS):
        part = start + tl.arange(0, BLOCK_PARTS)
        mask = (part < n_parts)[:, None] & (column < D)[None, :]
        sums += tl.load(parts + part[:, None] * D + column[None, :], mask, other=0.0)
    tl.store(result + column, tl.sum(sums, 0).to(result.dtype.element_ty), column < D)


class AddRMSNorm(torch.autograd.Function):
    """The kernels as an autograd function: apply(x, delta, weight, eps, dtype) to the sum and the norm in dtype."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Save the sum, the weight and the inverse RMS, [...] fp32."""
        total, normed, inverse_rms = norm_forward(x, delta, weight, eps, dtype)
        ctx.save_for_backward(total, weight, inverse_rms)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @only_once("add_rms_norm")
    def backward(
        ctx: Any, d_total: Tensor | None, d_normed: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Compute one gradient for x and delta, and the weight's."""
        _, delta_needs, weight_needs, *_ = ctx.needs_input_grad
        if d_normed is None:
            return d_total, d_total if delta_needs else None, None, None, None
        total, weight, inverse_rms = ctx.saved_tensors
        dx, d_weight = norm_backward(d_normed, d_total, total, weight, inverse_rms, weight_needs)
        return dx, dx if delta_needs else None, d_weight, None, None


@on_device
def norm_forward(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sum (x itself without delta), its norm in a dtype, and the inverse RMS, [...] fp32."""
    x, weight = x.contiguous(), weight.contiguous()
    total = x
    if delta is not None:
        delta = delta.contiguous()
        total = torch.empty_like(x, dtype=torch.promote_types(x.dtype, delta.dtype))
    normed = torch.empty_like(x, dtype=dtype)
    inverse_rms = x.new_empty(x.shape[:-1], dtype=torch.float32)
    tensors = (x, x if delta is None else delta, weight, total, normed, inverse_rms)
    _forward_launch(x.shape, eps, delta is not None, tuple(y.dtype for y in tensors))(*tensors)
    return total, normed, inverse_rms


@on_device
def norm_backward(
    d_normed: Tensor,
    d_total: Tensor | None,
    total: Tensor,
    weight: Tensor,
    inverse_rms: Tensor,
    weight_needs: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradient of x and delta and, if it is needed, of the weight."""
    d_normed, weight = d_normed.contiguous(), weight.contiguous()
    dx = torch.empty_like(total)
    d = total.shape[-1]
    programs = _programs(total.numel() // d, d, total.get_device())
    d_weights = inverse_rms.new_empty(programs, d) if weight_needs else inverse_rms
    gradient = d_normed if d_total is None else d_total.contiguous()
    tensors = (gradient, d_normed, total, weight, inverse_rms, dx, d_weights)
    dtypes = tuple(x.dtype for x in tensors)
    _backward_launch(total.shape, d_total is not None, weight_needs, programs, dtypes)(*tensors)
    if not weight_needs:
        return dx, None
    d_weight = torch.empty_like(weight)
    _sum_launch(programs, d, weight.dtype)(d_weights, d_weight)
    return dx, d_weight


@lru_cache(CACHE_SIZE)
def _forward_launch(shape: torch.Size, eps: float, has_delta: bool, dtypes: tuple[torch.dtype, ...]) -> Launch:
    d, rows = shape[-1], shape[:-1].numel()
    tile = _tile(d)
    grid = (cdiv(rows, tile.rows), 1, 1)
    return Launch(
        add_rms_norm_forward_kernel,
        grid,
        (rows, eps),
        (d, tile.rows, tile.columns, tiles.LAST_FIRST, has_delta),
        num_warps=tile.num_warps,
    )


@lru_cache(CACHE_SIZE)
def _backward_launch(
    shape: torch.Size, has_d_total: bool, has_d_weight: bool, programs: int, dtypes: tuple[torch.dtype, ...]
) -> Launch:
    d, rows = shape[-1], shape[:-1].numel()
    tile = _tile(d)
    stages = max(1, min(BACKWARD_STAGES, STAGED_SIZE // (tile.rows * tile.columns)))
    constexprs = (d, tile.rows, tile.columns, tiles.LAST_FIRST, has_d_total, has_d_weight, stages)
    return Launch(add_rms_norm_backward_kernel, (programs, 1, 1), (rows,), constexprs, num_warps=2 * tile.num_warps)


@lru_cache(CACHE_SIZE)
def _sum_launch(n_parts: int, d: int, dtype: torch.dtype) -> Launch:
    return Launch(sum_weight_gradients_kernel, (cdiv(d, 32), 1, 1), (n_parts,), (d, 64, 32))


@lru_cache(CACHE_SIZE)
def _programs(rows: int, d: int, device: int) -> int:
    """How many programs share the rows in the backward pass."""
    return min(cdiv(rows, _tile(d).rows), BACKWARD_PROGRAMS * _sm_count(device))


@cache
def _sm_count(device: int) -> int:
    """SMs of a GPU; one on a CPU, where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else 1


@cache
def _tile(d: int) -> Tile:
    """Whole rows with about 4096 elements: 32 per thread, so that several programs fit on an SM."""
    return row_tile(d, size=4096, per_thread=32)
