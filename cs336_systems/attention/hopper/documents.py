"""Packed documents in the Hopper kernels: which one a program works on, and coordinates of its rows.

The tensor map of packed documents has the axes [2 FAR - 1, FAR, heads, FAR, d]. If rows are s elements apart, the
strides of the first, second and fourth axis are 2^34 - s, s and s. FAR steps along the first one add 2^65 bytes, which
overflow to nothing, and go back FAR rows. So row r of a document of n rows, whose first is row f of the tensor, has the
coordinates (FAR, f + n, head, FAR - n + r, ...). Rows from n on are beyond the end of the fourth axis: they read as
zero and are not written. Triton's tools/ragged_tma.py uses the same overflow.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

FAR = gl.constexpr(2**30)
BOUNDS_AT_ONCE = gl.constexpr(256)


class Place(NamedTuple):
    """The work of a program within packed documents; None, in its place, for sequences of one length."""

    start: Any
    """The first row of its tile within the document."""
    first_q: Any
    """The first row of the document's queries."""
    first_k: Any
    """The first row of the document's keys."""
    of_head: Any
    """The first element of L of the document and head (forward), or their first query tile (backward)."""


@gluon.jit
def coordinates(source, sequence, head, row, column):
    """Coordinates of a row in a tensor of packed documents or, with four axes, in a sequence of a batch."""
    if len(source.block_type.shape) == 4:
        return sequence, head, row, column
    else:
        first, rows = sequence
        return FAR, first + rows, head, FAR - rows + row, column


@gluon.jit
def sequences(batch, n_queries, n_keys, place):
    """Queries and keys of a program, as coordinates accepts them."""
    if place is None:
        return batch, batch
    else:
        return (place.first_q, n_queries), (place.first_k, n_keys)


@gluon.jit
def locate_in_documents(
    tile,  # one of total // BLOCK + documents + 1; some are empty
    ends,  # pointer, [documents + 1] int32: cu_seqlens of the sequence whose tiles these are
    other_ends,  # pointer, of the other sequence
    documents,
    total,  # rows of the first sequence
    BLOCK: gl.constexpr,  # rows of a tile
):
    """Compute a tile's first row within its document, the document, and its first row and length in both sequences.

    As triton_options.locate_in_documents does.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    document = -1
    for first in range(0, documents + 1, BOUNDS_AT_ONCE):
        numbers = first + gl.arange(0, BOUNDS_AT_ONCE, layout=LAYOUT)
        starts = gl.load(ends + numbers, mask=numbers <= documents, other=2147483647)
        document += gl.sum((starts // BLOCK + numbers <= tile).to(gl.int32), 0)
    first = gl.load(ends + document)
    n_rows = gl.load(ends + document + 1, mask=document < documents, other=total) - first
    other_first = gl.load(other_ends + document)
    n_other = gl.load(other_ends + document + 1, mask=document < documents, other=0) - other_first
    start = (tile - first // BLOCK - document) * BLOCK
    n_other = gl.where((document < documents) & (start < n_rows), n_other, 0)
    return start, document, first, n_rows, other_first, n_other
