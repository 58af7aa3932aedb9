"""The fast backward pass: every tile of scores is recomputed once, 5 matrix products.

A program owns a tile of keys and adds its share of dQ to one fp32 buffer, which the copy engine does in memory
(a bulk tensor reduction). The order of these additions changes from run to run, and so do the last bits of dQ.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_key_gradients import LOG2_E, key_gradients, row_statistics
from cs336_systems.attention.triton_tiles import load_tile, store_tile


@triton.jit
def delta_kernel(
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    grad_o,  # pointer, likewise
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    delta,  # pointer, [batch, heads, n_padded] fp32, out: D
    lse_log2,  # pointer, [batch, heads, n_padded] fp32, out: L in units of log2, infinite beyond n_queries: P = 0
    dq_sum,  # pointer, [batch, heads, n_padded, BLOCK_D] fp32, out: zeros
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
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """What the other kernels need of every query: D = rowsum(O * dO); grid (batch x heads x query tiles)."""
    tiles = n_padded // BLOCK_M
    start = tl.program_id(0) % tiles * BLOCK_M
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch = batch_head // heads
    head = batch_head % heads
    grad = load_tile(
        grad_o, batch, head, start, n_queries, stride_gb, stride_gh, stride_gn, HEAD_DIM, BLOCK_M, BLOCK_D, False
    )
    log_sum, row_delta = row_statistics(
        grad,
        o,
        lse,
        batch,
        head,
        heads,
        start,
        n_queries,
        stride_ob,
        stride_oh,
        stride_on,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_D,
    )
    rows = start + tl.arange(0, BLOCK_M)
    tl.store(delta + batch_head * n_padded + rows, row_delta)
    tl.store(lse_log2 + batch_head * n_padded + rows, log_sum * LOG2_E)
    offsets = (batch_head * n_padded + rows)[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    tl.store(dq_sum + offsets, tl.zeros([BLOCK_M, BLOCK_D], tl.float32))


@triton.jit
def single_pass_kernel(
    q,  # descriptor, [batch, heads, n_queries, HEAD_DIM]
    k,  # descriptor, [batch, heads, n_keys, HEAD_DIM]
    v,  # likewise
    grad_o,  # descriptor, [batch, heads, n_queries, HEAD_DIM]
    lse,  # descriptor, [batch x heads x n_padded] fp32, units of log2
    delta,  # descriptor, [batch x heads x n_padded] fp32: D
    dq_sum,  # descriptor (pointer if not TMA_REDUCE), as in convert_dq_kernel, in and out
    dk,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    dv,  # likewise
    stride_dkb,
    stride_dkh,
    stride_dkn,
    stride_dvb,
    stride_dvh,
    stride_dvn,
    batch_heads,
    heads,
    n_queries,
    n_padded,
    n_keys,
    scale,  # 1 / sqrt(HEAD_DIM)
    scale_log2,  # log2(e) / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    TMA_REDUCE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All gradients in one pass over the score matrix; grid (key tiles x batch x heads).

    The first keys are seen by the most queries, so tiles start in order: longest first, over all heads.
    """
    batch_head = tl.program_id(0) % batch_heads
    key_gradients(
        tl.program_id(0) // batch_heads,
        batch_head // heads,
        batch_head % heads,
        q,
        k,
        v,
        q,  # O is not read: delta stands for it
        grad_o,
        lse,
        delta,
        dq_sum,
        dk,
        dv,
        0,  # strides of what comes through descriptors
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        stride_dkb,
        stride_dkh,
        stride_dkn,
        stride_dvb,
        stride_dvh,
        stride_dvn,
        heads,
        n_queries,
        n_padded,
        n_keys,
        scale,
        scale_log2,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
        IS_CAUSAL,
        True,
        TMA_REDUCE,
        TRANSPOSED,
        PRECISION,
    )


@triton.jit
def convert_dq_kernel(
    dq_sum,  # pointer, [batch, heads, n_padded, BLOCK_D] fp32; [batch, heads, BLOCK_D, n_padded] if TRANSPOSED
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    stride_dqb,
    stride_dqh,
    stride_dqn,
    heads,
    n_queries,
    n_padded,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Scale the sum of dQ and cast it; grid (batch x heads x query tiles)."""
    tiles = n_padded // BLOCK_M
    start = tl.program_id(0) % tiles * BLOCK_M
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    rows = start + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    if TRANSPOSED:
        offsets = (batch_head * BLOCK_D + columns)[:, None] * n_padded + rows[None, :]
        tile = tl.load(dq_sum + offsets).T
    else:
        offsets = (batch_head * n_padded + rows)[:, None] * BLOCK_D + columns[None, :]
        tile = tl.load(dq_sum + offsets)
    store_tile(
        dq,
        tile * scale,
        batch_head // heads,
        batch_head % heads,
        start,
        n_queries,
        stride_dqb,
        stride_dqh,
        stride_dqn,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_D,
    )
