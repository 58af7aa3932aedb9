"""Preprocess and postprocess kernels of the Hopper backward pass, in plain Triton; both are bandwidth-bound."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_load_store import Head, load_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_preprocess_kernel(
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    do,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    lse_delta,  # pointer, [batch x heads x query tiles, 2, 64] fp32, out: L in units of log2, and D = rowsum(O * dO)
    dq_sums,  # pointer, [batch x heads x query tiles, 64 x BLOCK_D] fp32, out: zeros
    stride_ob,
    stride_oh,
    stride_on,
    stride_dob,
    stride_doh,
    stride_don,
    heads,
    n_queries,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to 64, 80, 96 or 128
    ROW: tl.constexpr,  # HEAD_DIM padded to a power of two
):
    """Write L and D of 64 queries; L is infinite where P = 0: beyond the end, and where all scores are -inf.

    The grid is (batch x heads x query tiles).
    """
    query_tiles = tl.cdiv(n_queries, 64)
    tile = tl.program_id(0)
    start_m = tile % query_tiles * 64
    batch_head = tile // query_tiles
    batch = batch_head // heads
    head = batch_head % heads
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, n_queries)
    do_head = Head(do, (stride_dob, stride_doh, stride_don), batch, head, n_queries)
    o_tile = load_tile(o_head, start_m, HEAD_DIM, 64, ROW, False).to(tl.float32)
    do_tile = load_tile(do_head, start_m, HEAD_DIM, 64, ROW, False).to(tl.float32)
    rows = tl.arange(0, 64)
    row = batch_head.to(tl.int64) * n_queries + start_m
    lse_tile = tl.load(lse + row + rows, mask=start_m + rows < n_queries, other=float("inf"))
    lse_tile = tl.where(lse_tile == float("-inf"), float("inf"), lse_tile)
    tl.store(lse_delta + tile * 128 + rows, lse_tile * LOG2_E)
    tl.store(lse_delta + tile * 128 + 64 + rows, tl.sum(o_tile * do_tile, 1))
    ZEROS: tl.constexpr = 64 * (BLOCK_D & -BLOCK_D)
    for i in tl.static_range(64 * BLOCK_D // ZEROS):
        numbers = i * ZEROS + tl.arange(0, ZEROS)
        tl.store(dq_sums + tile.to(tl.int64) * 64 * BLOCK_D + numbers, tl.zeros([ZEROS], tl.float32))


@triton.jit
def attention_postprocess_kernel(
    dq_sums,  # pointer, [batch x heads x query tiles x BLOCK_D / COLUMNS, 64 x COLUMNS] fp32: dQ / softmax_scale
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    stride_dqb,
    stride_dqh,
    stride_dqn,
    heads,
    n_queries,
    softmax_scale,  # 1 / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to 64, 80, 96 or 128
    COLUMNS: tl.constexpr,
):
    """Convert 64 queries by COLUMNS columns of dQ; the grid is (batch x heads x query tiles x BLOCK_D / COLUMNS)."""
    query_tiles = tl.cdiv(n_queries, 64)
    block = tl.program_id(0)
    tile = block // (BLOCK_D // COLUMNS)
    batch_head = tile // query_tiles
    x = tl.load(dq_sums + block.to(tl.int64) * (64 * COLUMNS) + tl.arange(0, 64 * COLUMNS))
    # From the order of a warpgroup's registers, see add_dq:
    # [column / 8, warp, lane / 4, lane % 4, row half, pair] -> [warp, row half, lane / 4, column / 8, lane % 4, pair].
    x = tl.permute(x.reshape([COLUMNS // 8, 4, 8, 4, 2, 2]), (1, 4, 2, 0, 3, 5)).reshape([64, COLUMNS])
    rows = tile % query_tiles * 64 + tl.arange(0, 64)
    columns = block % (BLOCK_D // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    base = dq + (batch_head // heads).to(tl.int64) * stride_dqb + (batch_head % heads).to(tl.int64) * stride_dqh
    pointers = base + rows.to(tl.int64)[:, None] * stride_dqn + columns[None, :]
    mask = (rows < n_queries)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(pointers, (x * softmax_scale).to(dq.dtype.element_ty), mask=mask)
