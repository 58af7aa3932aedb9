"""Triton kernels for rotate_qkv, their launches and their autograd function.

A token's row of qkv is [3, heads, d_head], D = heads x d_head numbers for each of q, k and v.
"""

from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.tiles import Tile, part_tile


@triton.jit
def rotate_qkv_forward_kernel(
    qkv,  # pointer, [tokens, 3, D], q and k out
    cos,  # pointer, [context, PAIRS]
    sin,  # pointer, [context, PAIRS]
    tokens,
    sequence,
    D: tl.constexpr,
    PAIRS: tl.constexpr,  # half the width of a head
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Rotate one tile of q and k, which are neighbours in memory; the grid is (token tiles x column tiles)."""
    column_tiles: tl.constexpr = (2 * D + BLOCK_D - 1) // BLOCK_D
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    token = tile // column_tiles * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    start = tile % column_tiles * BLOCK_D
    column = start + tl.arange(0, BLOCK_D)
    pointers = qkv + (token.to(tl.int64)[:, None] * (3 * D) + column[None, :])
    mask = (token < tokens)[:, None] & (column < 2 * D)[None, :]
    features = tl.load(pointers, mask, other=0.0)
    rotated = _rotate(features, cos, sin, token % sequence, start // 2, 1.0, PAIRS, BLOCK_TOKENS, BLOCK_D)
    tl.store(pointers, rotated.to(qkv.dtype.element_ty), mask)


@triton.jit
def rotate_qkv_backward_kernel(
    dq,  # pointer, [batch, heads, sequence, d_head] by its strides
    dk,  # pointer, like dq
    dv,  # pointer, like dq
    cos,  # pointer, [context, PAIRS]
    sin,  # pointer, [context, PAIRS]
    d_qkv,  # pointer, [tokens, 3, D], out
    tokens,
    sequence,
    stride_b,
    stride_s,
    STRIDE_H: tl.constexpr,
    D: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Write one tile of the gradient of q, k or v; the grid is (token tiles x 3 x column tiles)."""
    column_tiles: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    token = tile // (3 * column_tiles) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    part = tile // column_tiles % 3
    start = tile % column_tiles * BLOCK_D
    column = start + tl.arange(0, BLOCK_D)
    mask = (token < tokens)[:, None] & (column < D)[None, :]
    position = token % sequence
    of_token = (token // sequence).to(tl.int64) * stride_b + position.to(tl.int64) * stride_s
    of_column = column // (2 * PAIRS) * STRIDE_H + column % (2 * PAIRS)
    offsets = of_token[:, None] + of_column[None, :]
    results = d_qkv + (token.to(tl.int64)[:, None] * (3 * D) + part * D + column[None, :])
    if part == 2:
        tl.store(results, tl.load(dv + offsets, mask), mask)
    else:
        source = dq
        if part == 1:
            source = dk
        features = tl.load(source + offsets, mask, other=0.0)
        rotated = _rotate(features, cos, sin, position, start // 2, -1.0, PAIRS, BLOCK_TOKENS, BLOCK_D)
        tl.store(results, rotated.to(d_qkv.dtype.element_ty), mask)


@triton.jit
def _rotate(
    features,  # [BLOCK_TOKENS, BLOCK_D]: pairs
    cos,
    sin,
    position,  # of the tokens, [BLOCK_TOKENS]
    first_pair,
    direction,  # 1.0, or -1.0 for the inverse
    PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rotate each pair by its angle, in fp32."""
    pair = (first_pair + tl.arange(0, BLOCK_D // 2)) % PAIRS
    offsets = position[:, None] * PAIRS + pair[None, :]
    c = tl.load(cos + offsets).to(tl.float32)
    s = tl.load(sin + offsets).to(tl.float32) * direction
    even, odd = tl.split(tl.reshape(features, [BLOCK_TOKENS, BLOCK_D // 2, 2]))
    even, odd = even.to(tl.float32), odd.to(tl.float32)
    return tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), [BLOCK_TOKENS, BLOCK_D])


class RotateQKV(torch.autograd.Function):
    """The kernels as an autograd function: apply(qkv, cos, sin, num_heads) to q, k and v."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> tuple[Tensor, ...]:
        """Save the tables."""
        ctx.save_for_backward(cos, sin)
        if any(ctx.needs_input_grad):
            torch.autograd.graph.increment_version(qkv)  # so that a backward pass that needs its old values fails
        return rotate_forward(qkv.detach(), cos, sin, num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None, None]:
        """Compute the gradient of qkv."""
        return rotate_backward(dq, dk, dv, *ctx.saved_tensors), None, None, None


@on_device
def rotate_forward(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Rotate q and k in place, or in a contiguous copy; return views, [batch, num_heads, sequence, d_head] each."""
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    _forward_launch(qkv.shape, num_heads, qkv.dtype, cos.dtype, sin.dtype)(qkv, cos, sin)
    return qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


@on_device
def rotate_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute the gradient of qkv from those of q, k and v, [batch, heads, sequence, d_head] each."""
    if dq.stride(-1) != 1 or not dq.stride() == dk.stride() == dv.stride():
        dq, dk, dv = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (dq, dk, dv))
    batch, heads, sequence, d_head = dq.shape
    d_qkv = dq.new_empty(batch, sequence, 3 * heads * d_head)
    cos, sin = cos.contiguous(), sin.contiguous()
    tensors = (dq, dk, dv, cos, sin, d_qkv)
    _backward_launch(dq.shape, dq.stride(), tuple(x.dtype for x in tensors))(*tensors)
    return d_qkv


@lru_cache(CACHE_SIZE)
def _forward_launch(shape: torch.Size, num_heads: int, *dtypes: torch.dtype) -> Launch:
    batch, sequence, width = shape
    d = width // 3
    tile = _tile(2 * d)
    grid = (cdiv(batch * sequence, tile.rows) * cdiv(2 * d, tile.columns), 1, 1)
    constexprs = (d, d // num_heads // 2, tile.rows, tile.columns, tiles.LAST_FIRST)
    return Launch(rotate_qkv_forward_kernel, grid, (batch * sequence, sequence), constexprs, num_warps=tile.num_warps)


@lru_cache(CACHE_SIZE)
def _backward_launch(shape: torch.Size, strides: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Launch:
    batch, heads, sequence, d_head = shape
    stride_b, stride_h, stride_s, _ = strides
    d = heads * d_head
    tile = _tile(d)
    grid = (cdiv(batch * sequence, tile.rows) * 3 * cdiv(d, tile.columns), 1, 1)
    scalars = (batch * sequence, sequence, stride_b, stride_s)
    constexprs = (stride_h, d, d_head // 2, tile.rows, tile.columns, tiles.LAST_FIRST)
    return Launch(rotate_qkv_backward_kernel, grid, scalars, constexprs, num_warps=tile.num_warps)


@cache
def _tile(width: int) -> Tile:
    """2048 numbers, 16 per thread: two 16-byte accesses in bf16."""
    return part_tile(width, size=2048, per_thread=16)
