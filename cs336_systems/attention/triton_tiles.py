"""Loads and stores of [rows, head_dim] tiles, shared by the forward and backward kernels."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    source,  # [batch, heads, n, HEAD_DIM]: a tensor descriptor if DESCRIPTORS, else a pointer
    strides,  # of batch, head and row, elements; the last axis has stride 1
    batch,
    head,
    start,  # first row
    n,  # rows that exist; those beyond read as zero
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM rounded up to a power of two; the columns beyond read as zero
    DESCRIPTORS: tl.constexpr,
):
    """One tile, [ROWS, BLOCK_D]."""
    if DESCRIPTORS:
        tile = source.load([batch, head, start, 0]).reshape([ROWS, BLOCK_D])
    else:
        pointers, inside = _address(source, strides, batch, head, start, n, HEAD_DIM, ROWS, BLOCK_D)
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tile


@triton.jit
def store_tile(
    target,  # pointer, [batch, heads, n, HEAD_DIM]
    tile,  # [ROWS, BLOCK_D]
    strides,
    batch,
    head,
    start,
    n,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the part of a tile that exists, cast to the target's dtype."""
    pointers, inside = _address(target, strides, batch, head, start, n, HEAD_DIM, ROWS, BLOCK_D)
    tl.store(pointers, tile.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _address(
    base,
    strides,
    batch,
    head,
    start,
    n,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Pointers to a tile's elements, and which of them exist."""
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    base += batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    pointers = base + rows.to(tl.int64)[:, None] * strides[2] + columns[None, :]
    inside = rows[:, None] < n
    if HEAD_DIM < BLOCK_D:
        inside &= columns[None, :] < HEAD_DIM
    return pointers, inside
