"""Triton kernels for swiglu, their launches and their autograd function."""

from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.differentiation import only_once
from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.tiles import Tile, part_tile


@triton.jit
def swiglu_forward_kernel(
    gate_up,  # pointer, [rows, 2, D]
    hidden,  # pointer, [rows, D], out
    rows,
    D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Compute one tile of the hidden layer; the grid is (row tiles x column tiles)."""
    row, column, mask = locate(rows, D, BLOCK_ROWS, BLOCK_D, LAST_FIRST)
    result = hidden_of(gate_up, row, column, mask, D)
    tl.store(hidden + (row * D + column), result.to(hidden.dtype.element_ty), mask)


@triton.jit
def swiglu_backward_kernel(
    gate_up,  # pointer, [rows, 2, D]
    d_hidden,  # pointer, [rows, D]; out with RECOMPUTE: the hidden layer
    d_gate_up,  # pointer, [rows, 2, D], out
    rows,
    D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):
    """Compute one tile of both gradients; the grid is (row tiles x column tiles)."""
    row, column, mask = locate(rows, D, BLOCK_ROWS, BLOCK_D, LAST_FIRST)
    up, gradient, sigmoid, silu = load_for_gradients(gate_up, d_hidden, row, column, mask, D)
    d_up, d_gate = gradient * silu, gate_gradient(gradient * up, sigmoid, silu)
    gate_at = d_gate_up + (row * (2 * D) + column)
    tl.store(gate_at, d_gate.to(d_gate_up.dtype.element_ty), mask)
    tl.store(gate_at + D, d_up.to(d_gate_up.dtype.element_ty), mask)
    if RECOMPUTE:
        tl.store(d_hidden + (row * D + column), (silu * up).to(d_hidden.dtype.element_ty), mask)


@triton.jit
def hidden_of(gate_up, row, column, mask, D: tl.constexpr):
    """Compute a tile of the hidden layer in fp32."""
    gate_at = gate_up + (row * (2 * D) + column)
    gate = tl.load(gate_at, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + D, mask, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@triton.jit
def load_for_gradients(gate_up, d_hidden, row, column, mask, D: tl.constexpr):
    """Load tiles of up and of the hidden layer's gradient, and compute sigmoid and silu of gate, all in fp32."""
    gate_at = gate_up + (row * (2 * D) + column)
    gate = tl.load(gate_at, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + D, mask, other=0.0).to(tl.float32)
    gradient = tl.load(d_hidden + (row * D + column), mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    return up, gradient, sigmoid, gate * sigmoid


@triton.jit
def gate_gradient(d_silu, sigmoid, silu):
    """Compute the gradient of gate from the gradient of silu(gate)."""
    return d_silu * (sigmoid + silu * (1.0 - sigmoid))


@triton.jit
def locate(rows, D: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Compute rows, columns and the mask of this program's tile; a row's tiles are neighbours."""
    column_tiles: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    row = tile // column_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tile % column_tiles * BLOCK_D + tl.arange(0, BLOCK_D)
    return row.to(tl.int64)[:, None], column[None, :], (row < rows)[:, None] & (column < D)[None, :]


class SwiGLUActivation(torch.autograd.Function):
    """The kernels as an autograd function: apply(gate_up)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        """Save gate_up."""
        ctx.save_for_backward(gate_up)
        return swiglu_forward(gate_up)

    @staticmethod
    @only_once("swiglu")
    def backward(ctx: Any, d_hidden: Tensor) -> Tensor:
        """Compute the gradient of gate_up."""
        (gate_up,) = ctx.saved_tensors
        return swiglu_backward(gate_up, d_hidden)[0]


@on_device
def swiglu_forward(gate_up: Tensor) -> Tensor:
    """Compute the hidden layer, [..., d_ff], from gate_up, [..., 2 d_ff]."""
    gate_up = gate_up.contiguous()
    hidden = gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    _forward_launch(hidden.shape, hidden.dtype)(gate_up, hidden)
    return hidden


@on_device
def swiglu_backward(gate_up: Tensor, d_hidden: Tensor, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """Compute the gradient of gate_up; with recompute, overwrite d_hidden with the hidden layer and also return it."""
    gate_up, d_hidden = gate_up.contiguous(), d_hidden.contiguous()
    d_gate_up = torch.empty_like(gate_up)
    _backward_launch(d_hidden.shape, recompute, gate_up.dtype, d_hidden.dtype)(gate_up, d_hidden, d_gate_up)
    return d_gate_up, d_hidden


@lru_cache(CACHE_SIZE)
def _forward_launch(shape: torch.Size, dtype: torch.dtype) -> Launch:
    d, rows = shape[-1], shape[:-1].numel()
    tile = _tile(d)
    return Launch(
        swiglu_forward_kernel,
        _grid(shape),
        (rows,),
        (d, tile.rows, tile.columns, tiles.LAST_FIRST),
        num_warps=tile.num_warps,
    )


@lru_cache(CACHE_SIZE)
def _backward_launch(shape: torch.Size, recompute: bool, *dtypes: torch.dtype) -> Launch:
    d, rows = shape[-1], shape[:-1].numel()
    tile = _tile(d)
    constexprs = (d, tile.rows, tile.columns, tiles.LAST_FIRST, recompute)
    return Launch(swiglu_backward_kernel, _grid(shape), (rows,), constexprs, num_warps=tile.num_warps)


def _grid(shape: torch.Size) -> tuple[int, int, int]:
    tile = _tile(shape[-1])
    return cdiv(shape[:-1].numel(), tile.rows) * cdiv(shape[-1], tile.columns), 1, 1


@cache
def _tile(d: int) -> Tile:
    """2048 elements, 16 per thread: two 16-byte accesses per tensor in bf16."""
    return part_tile(d, size=2048, per_thread=16)
