"""Loads and stores of [rows, head_dim] tiles, shared by the forward and backward kernels."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    source,  # [batch, heads, n, HEAD_DIM]: a tensor descriptor, or a pointer
    batch,
    head,
    start,  # first row
    n,  # rows that exist; those beyond read as zero
    stride_batch,  # elements, as are the two below; the last axis has stride 1
    stride_head,
    stride_row,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM rounded up to a power of two; the columns beyond read as zero
    DESCRIPTORS: tl.constexpr,
):
    """One tile, [ROWS, BLOCK_D]."""
    if DESCRIPTORS:
        tile = source.load([batch, head, start, 0]).reshape([ROWS, BLOCK_D])
    else:
        rows = start + tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_D)
        base = source + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
        pointers = base + rows.to(tl.int64)[:, None] * stride_row + columns[None, :]
        inside = rows[:, None] < n
        if HEAD_DIM < BLOCK_D:
            inside &= columns[None, :] < HEAD_DIM
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tile


@triton.jit
def store_tile(
    target,  # pointer, [batch, heads, n, HEAD_DIM]
    tile,  # [ROWS, BLOCK_D]
    batch,
    head,
    start,
    n,
    stride_batch,
    stride_head,
    stride_row,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the part of a tile that exists, cast to the target's dtype."""
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    base = target + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + columns[None, :]
    inside = rows[:, None] < n
    if HEAD_DIM < BLOCK_D:
        inside &= columns[None, :] < HEAD_DIM
    tl.store(pointers, tile.to(target.dtype.element_ty), mask=inside)
