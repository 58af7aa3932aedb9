"""Triton kernel for rotate_qkv, its launches and its autograd function.

A token's row of qkv holds the heads of q, of k and of v. The kernel reads them from tensors of any strides and writes
rows. In the forward pass it reads q and k from the rows themselves; in the backward pass it collects gradients.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.differentiation import only_once
from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.tiles import Tile, part_tile

FAR = tl.constexpr(2**20)
"""Stride between heads from which offsets need 64 bits: up to 2047 heads, smaller strides do not."""


class Tokens(NamedTuple):
    """Location of a program's tokens in the rows and in the tensors that are read."""

    index: Any
    """Among all tokens, [BLOCK_TOKENS]."""
    valid: Any
    batch: Any
    position: Any


class Tables(NamedTuple):
    """Angles by position and pair of features."""

    cos: Any
    sin: Any
    direction: Any
    """1.0, or -1.0 for the inverse rotation."""


@triton.jit
def rotate_qkv_kernel(
    q,  # pointer, [batch, Q_HEADS, sequence, 2 PAIRS] by its strides
    k,  # pointer, [batch, KV_HEADS, sequence, 2 PAIRS] by its strides
    v,  # pointer, like k; not read without COPY_V
    cos,  # pointer, [context, PAIRS]
    sin,  # pointer, [context, PAIRS]
    qkv,  # pointer, [tokens, Q_HEADS + 2 KV_HEADS, 2 PAIRS], out
    tokens,
    sequence,
    q_stride_b,
    q_stride_s,
    k_stride_b,
    k_stride_s,
    direction,  # 1.0, or -1.0 for the inverse rotation
    Q_STRIDE_H: tl.constexpr,
    K_STRIDE_H: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,  # half the width of a head
    INTERLEAVED: tl.constexpr,  # a pair are neighbours, otherwise they are PAIRS apart
    COPY_V: tl.constexpr,  # otherwise v is already in place
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Write one tile of q, k or v; the grid is (token tiles x column tiles)."""
    Q_WIDTH: tl.constexpr = Q_HEADS * 2 * PAIRS
    K_WIDTH: tl.constexpr = KV_HEADS * 2 * PAIRS
    Q_TILES: tl.constexpr = (Q_WIDTH + BLOCK_D - 1) // BLOCK_D
    K_TILES: tl.constexpr = (K_WIDTH + BLOCK_D - 1) // BLOCK_D
    ROW_TILES: tl.constexpr = Q_TILES + K_TILES + COPY_V * K_TILES
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    index = tile // ROW_TILES * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    token = Tokens(index, index < tokens, index // sequence, index % sequence)
    tables = Tables(cos, sin, direction)
    rows = qkv + index.to(tl.int64)[:, None] * (Q_WIDTH + 2 * K_WIDTH)
    part = tile % ROW_TILES
    if part < Q_TILES:
        heads = q + _offsets(token, q_stride_b, q_stride_s)
        _rotate(heads, rows, tables, token, part * BLOCK_D, Q_STRIDE_H, Q_WIDTH, PAIRS, INTERLEAVED, BLOCK_D)
    elif part < Q_TILES + K_TILES:
        start = (part - Q_TILES) * BLOCK_D
        heads = k + _offsets(token, k_stride_b, k_stride_s)
        _rotate(heads, rows + Q_WIDTH, tables, token, start, K_STRIDE_H, K_WIDTH, PAIRS, INTERLEAVED, BLOCK_D)
    else:
        column = (part - Q_TILES - K_TILES) * BLOCK_D + tl.arange(0, BLOCK_D)
        mask = token.valid[:, None] & (column < K_WIDTH)[None, :]
        heads = v + _offsets(token, k_stride_b, k_stride_s)
        features = tl.load(heads + _columns(column, K_STRIDE_H, PAIRS), mask)
        tl.store(rows + Q_WIDTH + K_WIDTH + column[None, :], features, mask)


@triton.jit
def _rotate(
    source,  # pointers to the tokens, [BLOCK_TOKENS, 1]
    target,  # pointers, [BLOCK_TOKENS, 1]
    tables,  # Tables
    token,  # Tokens
    start,  # first column
    STRIDE_H: tl.constexpr,  # of the source
    WIDTH: tl.constexpr,  # columns
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rotate the pairs of features in a tile by their angles, in fp32."""
    pair = start // 2 + tl.arange(0, BLOCK_D // 2)
    angles = token.position[:, None] * PAIRS + pair[None, :] % PAIRS
    cos = tl.load(tables.cos + angles).to(tl.float32)
    sin = tl.load(tables.sin + angles).to(tl.float32) * tables.direction
    if INTERLEAVED:
        column = start + tl.arange(0, BLOCK_D)
        mask = token.valid[:, None] & (column < WIDTH)[None, :]
        features = tl.load(source + _columns(column, STRIDE_H, PAIRS), mask, other=0.0)
        # One load of neighbours is wider than two loads of every other element.
        x, y = tl.split(tl.reshape(features, [features.shape[0], BLOCK_D // 2, 2]))
        x, y = x.to(tl.float32), y.to(tl.float32)
        rotated = tl.reshape(tl.join(x * cos - y * sin, x * sin + y * cos), features.shape)
        tl.store(target + column[None, :], rotated.to(features.dtype), mask)
    else:
        head, first = pair // PAIRS, pair % PAIRS
        mask = token.valid[:, None] & (pair < WIDTH // 2)[None, :]
        source += (_of_heads(head, STRIDE_H) + first)[None, :]
        target += (head * (2 * PAIRS) + first)[None, :]
        x = tl.load(source, mask, other=0.0)
        dtype = x.dtype
        x, y = x.to(tl.float32), tl.load(source + PAIRS, mask, other=0.0).to(tl.float32)
        tl.store(target, (x * cos - y * sin).to(dtype), mask)
        tl.store(target + PAIRS, (x * sin + y * cos).to(dtype), mask)


@triton.jit
def _offsets(token, stride_b, stride_s):
    """Compute offsets of tokens, [BLOCK_TOKENS, 1]."""
    return (token.batch.to(tl.int64) * stride_b + token.position.to(tl.int64) * stride_s)[:, None]


@triton.jit
def _columns(column, STRIDE_H: tl.constexpr, PAIRS: tl.constexpr):
    """Compute offsets of the columns of a row, [1, columns], in a tensor of heads."""
    return (_of_heads(column // (2 * PAIRS), STRIDE_H) + column % (2 * PAIRS))[None, :]


@triton.jit
def _of_heads(head, STRIDE_H: tl.constexpr):
    """Compute offsets of heads, which may exceed 32 bits if sequences are long."""
    if STRIDE_H >= FAR:
        head = head.to(tl.int64)
    return head * STRIDE_H


class RotateQKV(torch.autograd.Function):
    """The kernel as an autograd function: apply(qkv, cos, sin, num_heads, num_kv_heads, interleaved) to q, k and v."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int, interleaved: bool
    ) -> tuple[Tensor, ...]:
        """Save the tables."""
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        if any(ctx.needs_input_grad):
            torch.autograd.graph.increment_version(qkv)  # so that a backward pass that needs its old values fails
        return rotate_forward(qkv.detach(), cos, sin, num_heads, num_kv_heads, interleaved)

    @staticmethod
    @only_once("rotate_qkv")
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient of qkv."""
        cos, sin = ctx.saved_tensors
        return rotate_backward(dq, dk, dv, cos, sin, ctx.interleaved), None, None, None, None, None


@on_device
def rotate_forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int, interleaved: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate q and k in place, or in a contiguous copy; return views, [batch, heads, sequence, d_head] each."""
    qkv = qkv.contiguous()
    heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1)).transpose(1, 2)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    _launch(q, k, v, cos, sin, qkv, interleaved, inverse=False)
    return q, k, v


@on_device
def rotate_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Compute the gradient of qkv from the gradients of q, k and v, [batch, heads, sequence, d_head] each."""
    if dq.stride(-1) != 1:
        dq = dq.contiguous()
    if dk.stride(-1) != 1 or dk.stride() != dv.stride():
        dk, dv = dk.contiguous(), dv.contiguous()
    batch, num_heads, sequence, d_head = dq.shape
    d_qkv = dq.new_empty(batch, sequence, (num_heads + 2 * dk.shape[1]) * d_head)
    _launch(dq, dk, dv, cos, sin, d_qkv, interleaved, inverse=True)
    return d_qkv


def _launch(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, qkv: Tensor, interleaved: bool, inverse: bool
) -> None:
    tensors = (q, k, v, cos.contiguous(), sin.contiguous(), qkv)
    dtypes = tuple(x.dtype for x in tensors)
    _launch_of(q.shape, k.shape[1], q.stride(), k.stride(), interleaved, inverse, dtypes)(*tensors)


@lru_cache(CACHE_SIZE)
def _launch_of(
    q_shape: torch.Size,
    num_kv_heads: int,
    q_strides: tuple[int, ...],
    k_strides: tuple[int, ...],
    interleaved: bool,
    inverse: bool,
    dtypes: tuple[torch.dtype, ...],
) -> Launch:
    batch, num_heads, sequence, d_head = q_shape
    tokens = batch * sequence
    tile = _tile(num_kv_heads * d_head)
    q_tiles, kv_tiles = (cdiv(heads * d_head, tile.columns) for heads in (num_heads, num_kv_heads))
    row_tiles = q_tiles + kv_tiles * (2 if inverse else 1)
    (q_b, q_h, q_s, _), (k_b, k_h, k_s, _) = q_strides, k_strides
    return Launch(
        rotate_qkv_kernel,
        (cdiv(tokens, tile.rows) * row_tiles, 1, 1),
        (tokens, sequence, q_b, q_s, k_b, k_s, -1.0 if inverse else 1.0),
        (q_h, k_h, num_heads, num_kv_heads, d_head // 2, interleaved, inverse, *tile[:2], tiles.LAST_FIRST),
        num_warps=tile.num_warps,
    )


@cache
def _tile(width: int) -> Tile:
    """2048 elements, 16 per thread: two 16-byte accesses in bf16."""
    return part_tile(width, size=2048, per_thread=16)
