"""SwiGLU's passes in Triton, which round their results to FP8.

Under current scaling a pass without results finds the largest element first: it reads the inputs again, but neither
writes nor reads a result in bf16.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.fp8_formats import E4M3, HEADROOM, SMALLEST_AMAX
from cs336_systems.training.tiles import Tile
from cs336_systems.training.triton_fp8 import CURRENT, Amax, factor_of, raise_to, to_fp8
from cs336_systems.training.triton_swiglu import gate_gradient, hidden_of, load_for_gradients, locate

HIDDEN_TILE = Tile(8, 512, 8)
GRADIENT_TILE = Tile(64, 64, 8)
"""Tall, since columns are also written."""

Pass = Callable[[Tensor, Tensor | None, float, bool], None]
"""Runs a pass, given the amax that its scale is made for, where to collect the next one, the headroom, and whether to
store results."""


@triton.jit
def hidden_kernel(
    gate_up,  # pointer, [rows, 2, D]
    amax,  # pointer, one fp32 number
    hidden,  # pointer, [rows, D] FP8, out
    scale,  # pointer, one fp32 number, out
    next_amax,  # pointer, one fp32 number, which is raised
    rows,
    limit,  # the largest number of the format
    smallest,  # the smallest amax
    headroom,
    D: tl.constexpr,
    STORE: tl.constexpr,  # whether hidden and scale are written
    COLLECT: tl.constexpr,  # whether next_amax is
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Compute one tile of the hidden layer; the grid is (row tiles x column tiles)."""
    row, column, mask = locate(rows, D, BLOCK_ROWS, BLOCK_D, LAST_FIRST)
    result = via(hidden_of(gate_up, row, column, mask, D), gate_up)
    if COLLECT:
        raise_to(next_amax, result)
    if STORE:
        factor = factor_of(amax, scale, limit, smallest, headroom, 1)
        tl.store(hidden + (row * D + column), to_fp8(result, factor, limit, hidden.dtype.element_ty), mask)


@triton.jit
def gradients_kernel(
    gate_up,  # pointer, [rows, 2, D]
    d_hidden,  # pointer, [rows, D]
    hidden_scale,  # pointer, one fp32 number
    amax,  # pointer, one fp32 number
    by_row,  # pointer, [rows, 2, D] FP8, out: the gradient of gate_up
    by_column,  # pointer, [2, D, rows] FP8, out
    hidden,  # pointer, [D, rows] FP8, out: the columns of the hidden layer
    scale,  # pointer, one fp32 number, out
    next_amax,  # pointer, one fp32 number, which is raised
    rows,
    limit,  # the largest number of the gradient's format
    hidden_limit,  # the largest number of the hidden layer's format
    smallest,  # the smallest amax
    headroom,
    D: tl.constexpr,
    STORE: tl.constexpr,  # whether anything but next_amax is written
    COLLECT: tl.constexpr,  # whether next_amax is
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Compute one tile of both gradients and of the hidden layer; the grid is (row tiles x column tiles)."""
    row, column, mask = locate(rows, D, BLOCK_ROWS, BLOCK_D, LAST_FIRST)
    gate_offset = row * (2 * D) + column
    up, gradient, sigmoid, silu = load_for_gradients(gate_up, d_hidden, row, column, mask, D)
    result = via(silu * up, gate_up)
    d_up = via(gradient * silu, gate_up)
    d_gate = via(gate_gradient(gradient * up, sigmoid, silu), gate_up)
    if COLLECT:
        raise_to(next_amax, tl.maximum(tl.abs(d_up), tl.abs(d_gate)))
    if STORE:
        dtype: tl.constexpr = by_row.dtype.element_ty
        factor = factor_of(amax, scale, limit, smallest, headroom, 1)
        d_gate, d_up = to_fp8(d_gate, factor, limit, dtype), to_fp8(d_up, factor, limit, dtype)
        tl.store(by_row + gate_offset, d_gate, mask)
        tl.store(by_row + gate_offset + D, d_up, mask)
        column = column.to(tl.int64)
        tl.store(by_column + (column * rows + row), d_gate, mask)
        tl.store(by_column + ((column + D) * rows + row), d_up, mask)
        factor = tl.div_rn(1.0, tl.load(hidden_scale))
        tl.store(hidden + (column * rows + row), to_fp8(result, factor, hidden_limit, hidden.dtype.element_ty), mask)


@triton.jit
def via(x, like):
    """Round numbers to the dtype that a separate pass would store, and widen them.

    So the compiler transposes tiles of 16 bits: ptxas 12.9 corrupts FP8 tiles (triton issue 11111).
    """
    return x.to(like.dtype.element_ty).to(tl.float32)


class Gradients(NamedTuple):
    """The gradient of gate_up in FP8, and the columns of the hidden layer."""

    rows: Tensor
    """[rows, 2 d_ff]."""
    columns: Tensor
    """[2 d_ff, rows]."""
    scale: Tensor
    hidden: Tensor
    """[d_ff, rows], float8_e4m3fn."""


@on_device
def swiglu_fp8(gate_up: Tensor, amax: Amax = CURRENT) -> tuple[Tensor, Tensor]:
    """Compute the hidden layer in FP8 from gate_up, [rows, 2 d_ff], contiguous.

    Returns:
        [rows, d_ff], float8_e4m3fn, and the factor that restores it, one fp32 number.
    """
    rows, width = gate_up.shape
    hidden = torch.empty(rows, width // 2, dtype=E4M3, device=gate_up.device)
    scale = torch.empty((), dtype=torch.float32, device=gate_up.device)

    def run(last: Tensor, seen: Tensor | None, headroom: float, store: bool) -> None:
        launch = _hidden_launch(hidden.shape, gate_up.dtype, headroom, store, seen is not None)
        launch(gate_up, last, hidden, scale, scale if seen is None else seen)

    _run(run, gate_up.device, amax)
    return hidden, scale


@on_device
def swiglu_fp8_backward(
    gate_up: Tensor, d_hidden: Tensor, hidden_scale: Tensor, dtype: torch.dtype, amax: Amax = CURRENT
) -> Gradients:
    """Compute the gradient of gate_up in an FP8 format, and recompute the hidden layer, scaled as by `swiglu_fp8`.

    gate_up is [rows, 2 d_ff] and d_hidden [rows, d_ff], both contiguous; amax is the gradient's.
    """
    rows, width = gate_up.shape
    by_row = torch.empty_like(gate_up, dtype=dtype)
    by_column = gate_up.new_empty(width, rows, dtype=dtype)
    hidden = gate_up.new_empty(width // 2, rows, dtype=E4M3)
    scale = torch.empty((), dtype=torch.float32, device=gate_up.device)

    def run(last: Tensor, seen: Tensor | None, headroom: float, store: bool) -> None:
        launch = _gradients_launch(d_hidden.shape, gate_up.dtype, dtype, headroom, store, seen is not None)
        seen = scale if seen is None else seen
        launch(gate_up, d_hidden, hidden_scale, last, by_row, by_column, hidden, scale, seen)

    _run(run, gate_up.device, amax)
    return Gradients(by_row, by_column, scale, hidden)


def _run(run: Pass, device: torch.device, amax: Amax) -> None:
    """Run a pass, after one that finds the largest element if it is unknown."""
    if amax.last is not None:
        run(amax.last, amax.next, HEADROOM, True)
        return
    largest = torch.zeros((), dtype=torch.float32, device=device)
    run(largest, largest, 1.0, False)
    run(largest, amax.next, 1.0, True)


@lru_cache(CACHE_SIZE)
def _hidden_launch(shape: torch.Size, dtype: torch.dtype, headroom: float, store: bool, collect: bool) -> Launch:
    limits = (torch.finfo(E4M3).max,)
    return _launch(hidden_kernel, shape, HIDDEN_TILE, (*limits, SMALLEST_AMAX, headroom), store, collect)


@lru_cache(CACHE_SIZE)
def _gradients_launch(
    shape: torch.Size, dtype: torch.dtype, rounded: torch.dtype, headroom: float, store: bool, collect: bool
) -> Launch:
    limits = torch.finfo(rounded).max, torch.finfo(E4M3).max
    return _launch(gradients_kernel, shape, GRADIENT_TILE, (*limits, SMALLEST_AMAX, headroom), store, collect)


def _launch(
    kernel: Callable[..., None], shape: torch.Size, tile: Tile, scalars: tuple[float, ...], store: bool, collect: bool
) -> Launch:
    rows, d = shape
    return Launch(
        kernel,
        (cdiv(rows, tile.rows) * cdiv(d, tile.columns), 1, 1),
        (rows, *scalars),
        (d, store, collect, tile.rows, tile.columns, tiles.LAST_FIRST),
        num_warps=tile.num_warps,
    )
