"""Preprocess and postprocess kernels of the Hopper backward pass, in plain Triton; both are bandwidth-bound."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_load_store import Head, load_tile
from cs336_systems.attention.triton_options import locate_in_documents

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def locate(tile, n_queries, cu_seqlens_q, cu_seqlens_k, documents):
    """Compute a tile's head (of batch x heads), its first row in its sequence, and that one's first row and length.

    Each document has query tiles of its own, as in triton_options.locate_in_documents; some tiles are empty.
    """
    if documents is None:
        query_tiles = tl.cdiv(n_queries, 64)
        batch_head = tile // query_tiles
        start_m = tile % query_tiles * 64
        first = 0
    else:
        query_tiles = n_queries // 64 + documents + 1
        batch_head = tile // query_tiles
        start_m, first, n_queries, _, _ = locate_in_documents(
            tile % query_tiles, cu_seqlens_q, cu_seqlens_k, documents, n_queries, 64
        )
    return batch_head, start_m, first, n_queries


@triton.jit
def attention_preprocess_kernel(
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    do,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    lse_delta,  # pointer, [batch x heads x query tiles, 2, 64] fp32, out: L in units of log2, and D = rowsum(O * dO)
    dq_sums,  # pointer, [batch x heads x query tiles, 64 x BLOCK_D] fp32, out: zeros
    grad_lse,  # pointer, [batch, heads, n_queries] fp32, is subtracted from D; None for none
    sinks,  # pointer, [heads]; None for none
    sink_sums,  # pointer, [batch x heads x query tiles] fp32, out: a tile's part of the gradient of its head's sink
    cu_seqlens_q,  # pointer, [documents + 1] int32; None without packed documents
    cu_seqlens_k,
    stride_ob,
    stride_oh,
    stride_on,
    stride_dob,
    stride_doh,
    stride_don,
    heads,
    n_queries,
    documents,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to 64, 80, 96 or 128
    ROW: tl.constexpr,  # HEAD_DIM padded to a power of two
):
    """Write L and D of 64 queries; L is infinite where P = 0: beyond the end, and where all scores are -inf.

    The grid is (batch x heads x query tiles).
    """
    tile = tl.program_id(0)
    batch_head, start_m, first, rows_of_sequence = locate(tile, n_queries, cu_seqlens_q, cu_seqlens_k, documents)
    batch = batch_head // heads
    head = batch_head % heads
    o += first.to(tl.int64) * stride_on
    do += first.to(tl.int64) * stride_don
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, rows_of_sequence)
    do_head = Head(do, (stride_dob, stride_doh, stride_don), batch, head, rows_of_sequence)
    o_tile = load_tile(o_head, start_m, HEAD_DIM, 64, ROW, False).to(tl.float32)
    do_tile = load_tile(do_head, start_m, HEAD_DIM, 64, ROW, False).to(tl.float32)
    rows = tl.arange(0, 64)
    row = batch_head.to(tl.int64) * n_queries + first + start_m
    lse_tile = tl.load(lse + row + rows, mask=start_m + rows < rows_of_sequence, other=float("inf"))
    lse_tile = tl.where(lse_tile == float("-inf"), float("inf"), lse_tile)
    tl.store(lse_delta + tile * 128 + rows, lse_tile * LOG2_E)
    delta = tl.sum(o_tile * do_tile, 1)
    if grad_lse is not None:
        delta -= tl.load(grad_lse + row + rows, mask=start_m + rows < rows_of_sequence, other=0.0)
    tl.store(lse_delta + tile * 128 + 64 + rows, delta)
    if sinks is not None:  # its value is zero, so its dS is -P D
        sink = tl.load(sinks + head).to(tl.float32)
        tl.store(sink_sums + tile, -tl.sum(tl.exp2((sink - lse_tile) * LOG2_E) * delta))
    ZEROS: tl.constexpr = 64 * (BLOCK_D & -BLOCK_D)
    for i in tl.static_range(64 * BLOCK_D // ZEROS):
        numbers = i * ZEROS + tl.arange(0, ZEROS)
        tl.store(dq_sums + tile.to(tl.int64) * 64 * BLOCK_D + numbers, tl.zeros([ZEROS], tl.float32))


@triton.jit
def attention_postprocess_kernel(
    dq_sums,  # pointer, [batch x heads x query tiles x BLOCK_D / COLUMNS, 64 x COLUMNS] fp32: dQ / softmax_scale
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    cu_seqlens_q,  # as in attention_preprocess_kernel
    cu_seqlens_k,
    stride_dqb,
    stride_dqh,
    stride_dqn,
    heads,
    n_queries,
    documents,
    softmax_scale,  # 1 / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to 64, 80, 96 or 128
    COLUMNS: tl.constexpr,
):
    """Convert 64 queries by COLUMNS columns of dQ; the grid is (batch x heads x query tiles x BLOCK_D / COLUMNS)."""
    block = tl.program_id(0)
    tile = block // (BLOCK_D // COLUMNS)
    batch_head, start_m, first, rows_of_sequence = locate(tile, n_queries, cu_seqlens_q, cu_seqlens_k, documents)
    x = tl.load(dq_sums + block.to(tl.int64) * (64 * COLUMNS) + tl.arange(0, 64 * COLUMNS))
    # From the order of a warpgroup's registers, see add_dq:
    # [column / 8, warp, lane / 4, lane % 4, row half, pair] -> [warp, row half, lane / 4, column / 8, lane % 4, pair].
    x = tl.permute(x.reshape([COLUMNS // 8, 4, 8, 4, 2, 2]), (1, 4, 2, 0, 3, 5)).reshape([64, COLUMNS])
    rows = start_m + tl.arange(0, 64)
    columns = block % (BLOCK_D // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    base = dq + (batch_head // heads).to(tl.int64) * stride_dqb + (batch_head % heads).to(tl.int64) * stride_dqh
    pointers = base + (first + rows).to(tl.int64)[:, None] * stride_dqn + columns[None, :]
    mask = (rows < rows_of_sequence)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(pointers, (x * softmax_scale).to(dq.dtype.element_ty), mask=mask)
