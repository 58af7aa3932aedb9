"""FlashAttention-2's backward pass as one Triton kernel, with the same bits every time.

With P = exp(S - L) recomputed tile by tile and D = rowsum(O * dO), the gradients are (FlashAttention-2, Algorithm 2)

    dV = P^T dO,   dS = P * (dO V^T - D),   dQ = dS K / sqrt(d),   dK = dS^T Q / sqrt(d).

Some programs own a tile of keys and sum dK and dV over the queries, the others own a tile of queries and sum dQ over
the keys. So S and dO V^T are computed twice, 7 products instead of 5; a single pass, in which every program adds its
share of dQ to one buffer, was built too and is slower on an H200 (docs/kernel-notes.md).
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_key_gradients import key_gradients
from cs336_systems.attention.triton_query_gradients import query_gradients


@triton.jit
def backward_kernel(
    q,  # [batch, heads, n_queries, HEAD_DIM]: a descriptor if DESCRIPTORS, else a pointer; so are k, v and grad_o
    k,  # [batch, heads, n_keys, HEAD_DIM]
    v,  # [batch, heads, n_keys, HEAD_DIM]
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]; not read if HAS_STATISTICS
    grad_o,  # [batch, heads, n_queries, HEAD_DIM]
    row_statistics,  # as in triton_row_statistics.statistics
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    dk,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    dv,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_ob,
    stride_oh,
    stride_on,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_dqb,
    stride_dqh,
    stride_dqn,
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
    key_tiles,
    query_tiles,
    scale,  # 1 / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    OWN: tl.constexpr,  # keys, or queries, that a program owns
    TAKE: tl.constexpr,  # queries, or keys, that it takes at a time
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_STATISTICS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid ((key_tiles + query_tiles) x batch x heads): all tiles of keys, then all tiles of queries."""
    q_strides = (stride_qb, stride_qh, stride_qn)
    k_strides = (stride_kb, stride_kh, stride_kn)
    v_strides = (stride_vb, stride_vh, stride_vn)
    o_strides = (stride_ob, stride_oh, stride_on)
    g_strides = (stride_gb, stride_gh, stride_gn)
    batch_head = tl.program_id(0) % batch_heads
    batch = batch_head // heads
    head = batch_head % heads
    # If causal, the first keys are seen by the most queries and the last queries see the most keys: longest tiles
    # first, so that what starts last is short and the multiprocessors finish together.
    tile = tl.program_id(0) // batch_heads
    if tile < key_tiles:
        key_gradients(
            tile,
            batch,
            head,
            heads,
            q,
            k,
            v,
            o,
            grad_o,
            row_statistics,
            dk,
            dv,
            q_strides,
            k_strides,
            v_strides,
            o_strides,
            g_strides,
            (stride_dkb, stride_dkh, stride_dkn),
            (stride_dvb, stride_dvh, stride_dvn),
            n_queries,
            n_padded,
            n_keys,
            scale,
            HEAD_DIM,
            OWN,
            TAKE,
            BLOCK_D,
            IS_CAUSAL,
            HAS_STATISTICS,
            DESCRIPTORS,
            PRECISION,
        )
    else:
        query_gradients(
            key_tiles + query_tiles - 1 - tile,
            batch,
            head,
            heads,
            q,
            k,
            v,
            o,
            grad_o,
            row_statistics,
            dq,
            q_strides,
            k_strides,
            v_strides,
            o_strides,
            g_strides,
            (stride_dqb, stride_dqh, stride_dqn),
            n_queries,
            n_padded,
            n_keys,
            scale,
            HEAD_DIM,
            OWN,
            TAKE,
            BLOCK_D,
            IS_CAUSAL,
            HAS_STATISTICS,
            DESCRIPTORS,
            PRECISION,
        )
