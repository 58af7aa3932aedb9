"""FlashAttention-2's preprocess step: the two numbers per query that the backward pass needs.

They are L, saved by the forward pass, and D = rowsum(O * dO), called delta in the code. From them the backward pass
recomputes the probabilities P, with recompute_p. L is kept in units of log2, which saves one multiplication per
exponential, except for fp32 inputs: with scores in the hundreds, another rounding of L is visible in the gradients.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cs336_systems.attention.triton_load_store import Head, load_tile

LOG2_E = tl.constexpr(1.4426950408889634)


class LseDelta(NamedTuple):
    """Location of L and D of a head's queries, or of the tensors to compute them from."""

    data: Any
    """lse_delta of preprocess_kernel if it has run, as a pointer or a descriptor, else a pointer to lse."""
    o_head: Any
    """The head's output; not read if preprocess_kernel has run."""
    heads: Any
    n_queries_rounded: Any


@triton.jit
def preprocess_kernel(
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    do,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    lse_delta,  # pointer, [batch, heads, 2, n_queries_rounded] fp32, out: L and D
    stride_ob,
    stride_oh,
    stride_on,
    stride_dob,
    stride_doh,
    stride_don,
    heads,
    n_queries,
    n_queries_rounded,  # n_queries rounded up to whole tiles
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per program
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to a power of two
):
    """Write L and D of one tile of queries; the grid is (batch x heads x query tiles)."""
    tiles = n_queries_rounded // BLOCK_M
    start_m = tl.program_id(0) % tiles * BLOCK_M
    batch_head = tl.program_id(0) // tiles
    batch = batch_head // heads
    head = batch_head % heads
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, n_queries)
    do_head = Head(do, (stride_dob, stride_doh, stride_don), batch, head, n_queries)
    do_tile = load_tile(do_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, False)
    source = LseDelta(lse, o_head, heads, n_queries_rounded)
    lse_tile, delta = _compute_lse_delta(source, do_tile, start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
    offs_m = batch_head.to(tl.int64) * 2 * n_queries_rounded + start_m + tl.arange(0, BLOCK_M)
    tl.store(lse_delta + offs_m, lse_tile)
    tl.store(lse_delta + n_queries_rounded + offs_m, delta)


@triton.jit
def load_lse_delta(
    x,  # an LseDelta
    do_tile,  # [BLOCK_M, BLOCK_D]
    start_m,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PREPROCESSED: tl.constexpr,
    PACKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Load L and D of one tile of queries, [BLOCK_M] fp32 each, or compute them if preprocess_kernel has not run."""
    if PREPROCESSED:
        o = x.o_head
        offset = (o.batch * x.heads + o.head).to(tl.int64) * 2 * x.n_queries_rounded + start_m
        offs_m = start_m + tl.arange(0, BLOCK_M)
        if DESCRIPTORS and not PACKED:
            # Plain loads next to descriptors would cost every thread one asynchronous copy per number.
            lse_tile = x.data.load([offset.to(tl.int32)])
            delta = x.data.load([(offset + x.n_queries_rounded).to(tl.int32)])
        elif PACKED:  # another document may follow; where this one starts is no multiple of the 16 bytes of descriptors
            rows = x.data + offset + tl.arange(0, BLOCK_M)
            lse_tile = tl.load(rows, mask=offs_m < o.n_rows, other=float("inf"))
            delta = tl.load(rows + x.n_queries_rounded, mask=offs_m < o.n_rows, other=0.0)
        else:
            lse_tile = tl.load(x.data + offset + tl.arange(0, BLOCK_M))
            delta = tl.load(x.data + offset + x.n_queries_rounded + tl.arange(0, BLOCK_M))
    else:
        lse_tile, delta = _compute_lse_delta(x, do_tile, start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
    return lse_tile, delta


@triton.jit
def _compute_lse_delta(
    x,  # an LseDelta that holds lse
    do_tile,  # [BLOCK_M, BLOCK_D]
    start_m,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute L, infinite where P = 0 (beyond n_queries, and where all scores are -inf), and D, [BLOCK_M] fp32 each."""
    o_head = x.o_head
    o_tile = load_tile(o_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, False)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offset = (o_head.batch * x.heads + o_head.head).to(tl.int64) * o_head.n_rows
    lse_tile = tl.load(x.data + offset + offs_m, mask=offs_m < o_head.n_rows, other=float("inf"))
    lse_tile = tl.where(lse_tile == float("-inf"), float("inf"), lse_tile)
    if do_tile.dtype != tl.float32:
        lse_tile *= LOG2_E
    return lse_tile, tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), 1)


@triton.jit
def recompute_p(
    scores,  # [rows, columns] fp32, unscaled
    lse_tile,  # L, broadcastable to scores
    softmax_scale,  # 1 / sqrt(HEAD_DIM)
    IS_FP32: tl.constexpr,  # dtype of the inputs
):
    """Recompute P = exp(softmax_scale S - L)."""
    if IS_FP32:
        p = tl.exp2((scores * softmax_scale - lse_tile) * LOG2_E)
    else:
        p = tl.exp2(scores * (softmax_scale * LOG2_E) - lse_tile)
    return p
