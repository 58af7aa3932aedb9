"""Location of a program's work, and loads and stores of its tiles, for the forward and backward kernels."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234e38)
"""The first maximum of a row: finite, so that no infinities are subtracted where scores are -inf."""


class Head(NamedTuple):
    """One head of a [batch, heads, n_rows, HEAD_DIM] tensor, as a kernel passes it to its helpers.

    Constexprs are passed separately, because Triton turns those in an assigned tuple into tensors.
    """

    data: Any
    """Pointer to the whole tensor, or a tensor descriptor."""
    strides: Any
    """Strides of batch, head and row, in elements; the last axis has stride 1."""
    batch: Any
    head: Any
    n_rows: Any
    """Rows beyond this read as zero and are not written."""


@triton.jit
def locate(
    group,  # heads; divides batch x heads
    tiles,  # of each head
):
    """Compute head (of batch x heads) and tile of this program: within a group of heads, one tile of every head, then
    the next tile.

    A small group's keys and values stay in the L2 cache while its tiles read them.
    """
    of_group = tl.program_id(0) // (group * tiles)
    in_group = tl.program_id(0) % (group * tiles)
    return of_group * group + in_group % group, in_group // group


@triton.jit
def load_tile(
    x,  # a Head
    start,  # first row
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,  # rows
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to a power of two; columns beyond HEAD_DIM read as zero
    DESCRIPTORS: tl.constexpr,  # x.data is a tensor descriptor
):
    """Load one tile, [BLOCK, BLOCK_D]."""
    if DESCRIPTORS:
        tile = x.data.load([x.batch, x.head, start, 0]).reshape([BLOCK, BLOCK_D])
    else:
        pointers, mask = _pointers_and_mask(x, start, HEAD_DIM, BLOCK, BLOCK_D)
        tile = tl.load(pointers, mask=mask, other=0.0)
    return tile


@triton.jit
def store_tile(x, tile, start, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write a tile, [BLOCK, BLOCK_D], to x, a Head with a pointer: the part inside the tensor, cast to its dtype."""
    pointers, mask = _pointers_and_mask(x, start, HEAD_DIM, BLOCK, BLOCK_D)
    tl.store(pointers, tile.to(x.data.dtype.element_ty), mask=mask)


@triton.jit
def _pointers_and_mask(x, start, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute pointers to a tile's elements, and a mask of those inside the tensor."""
    rows = start + tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_D)
    base = x.data + (x.batch.to(tl.int64) * x.strides[0] + x.head.to(tl.int64) * x.strides[1])
    pointers = base + rows.to(tl.int64)[:, None] * x.strides[2] + columns[None, :]
    mask = rows[:, None] < x.n_rows
    if HEAD_DIM < BLOCK_D:
        mask &= columns[None, :] < HEAD_DIM
    return pointers, mask
