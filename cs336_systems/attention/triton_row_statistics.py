"""The two numbers that the backward pass needs of every query: L, saved by the forward pass, and D = rowsum(O * dO).

L is kept in units of log2, which saves a multiplication an exponential, except for fp32 inputs: where scores are in the
hundreds, one more rounding of L shows there.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_tiles import load_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def compute_statistics(
    grad,  # [ROWS, BLOCK_D], the tile of dO
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    o_strides,
    batch,
    head,
    heads,
    start,
    n_queries,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """L, infinite beyond n_queries so that P = 0 there, and D, [ROWS] fp32 each."""
    out = load_tile(o, o_strides, batch, head, start, n_queries, HEAD_DIM, ROWS, BLOCK_D, False)
    rows = start + tl.arange(0, ROWS)
    first = (batch * heads + head).to(tl.int64) * n_queries
    log_sum = tl.load(lse + first + rows, mask=rows < n_queries, other=float("inf"))
    if grad.dtype != tl.float32:
        log_sum *= LOG2_E
    return log_sum, tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)


@triton.jit
def statistics_kernel(
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    grad_o,  # pointer, likewise
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    row_statistics,  # pointer, [batch, heads, 2, n_padded] fp32, out: L and D
    stride_ob,
    stride_oh,
    stride_on,
    stride_gb,
    stride_gh,
    stride_gn,
    heads,
    n_queries,
    n_padded,  # n_queries rounded up to whole tiles
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """compute_statistics of every query; grid (batch x heads x tiles of ROWS queries)."""
    tiles = n_padded // ROWS
    start = tl.program_id(0) % tiles * ROWS
    batch_head = tl.program_id(0) // tiles
    batch = batch_head // heads
    head = batch_head % heads
    g_strides = (stride_gb, stride_gh, stride_gn)
    o_strides = (stride_ob, stride_oh, stride_on)
    grad = load_tile(grad_o, g_strides, batch, head, start, n_queries, HEAD_DIM, ROWS, BLOCK_D, False)
    log_sum, delta = compute_statistics(
        grad, o, lse, o_strides, batch, head, heads, start, n_queries, HEAD_DIM, ROWS, BLOCK_D
    )
    rows = batch_head.to(tl.int64) * 2 * n_padded + start + tl.arange(0, ROWS)
    tl.store(row_statistics + rows, log_sum)
    tl.store(row_statistics + n_padded + rows, delta)


@triton.jit
def statistics(
    grad,  # [ROWS, BLOCK_D], the tile of dO
    o,
    row_statistics,  # of statistics_kernel, a descriptor if DESCRIPTORS; not HAS_STATISTICS: lse of compute_statistics
    o_strides,
    batch,
    head,
    heads,
    start,
    n_queries,
    n_padded,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_STATISTICS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """L and D of one tile of queries, [ROWS] fp32 each, from statistics_kernel's memory or computed here."""
    if HAS_STATISTICS:
        first = (batch * heads + head).to(tl.int64) * 2 * n_padded + start
        if DESCRIPTORS:
            # As plain loads beside descriptors they would cost every thread one asynchronous copy a number.
            log_sum = row_statistics.load([first.to(tl.int32)])
            delta = row_statistics.load([(first + n_padded).to(tl.int32)])
        else:
            log_sum = tl.load(row_statistics + first + tl.arange(0, ROWS))
            delta = tl.load(row_statistics + first + n_padded + tl.arange(0, ROWS))
    else:
        log_sum, delta = compute_statistics(
            grad, o, row_statistics, o_strides, batch, head, heads, start, n_queries, HEAD_DIM, ROWS, BLOCK_D
        )
    return log_sum, delta


@triton.jit
def recompute_probabilities(
    scores,  # [rows, columns] fp32, unscaled
    log_sum,  # L, broadcastable to scores
    scale,  # 1 / sqrt(HEAD_DIM)
    FULL_PRECISION: tl.constexpr,  # the inputs are fp32
):
    """P = exp(scale S - L)."""
    if FULL_PRECISION:
        probabilities = tl.exp2((scores * scale - log_sum) * LOG2_E)
    else:
        probabilities = tl.exp2(scores * (scale * LOG2_E) - log_sum)
    return probabilities
