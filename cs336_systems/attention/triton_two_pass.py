"""The backward pass with the same bits every time, in one launch: 7 matrix products, no buffers.

Some programs own a tile of keys and compute dK and dV, the others own a tile of queries and compute dQ. Also the faster
one for short sequences, where launches and idle multiprocessors cost more than products.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_key_gradients import LOG2_E, key_gradients, row_statistics
from cs336_systems.attention.triton_tiles import load_tile, store_tile


@triton.jit
def _add_keys(
    acc,  # [BLOCK_M, BLOCK_D] fp32, running sum of dQ
    query,  # [BLOCK_M, BLOCK_D]
    grad,  # [BLOCK_M, BLOCK_D], the tile of dO
    log_sum,  # [BLOCK_M] fp32, L
    row_delta,  # [BLOCK_M] fp32
    k,
    v,
    batch,
    head,
    first_query,
    first_key,
    last_key,  # exclusive
    n_keys,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold the keys first_key ... last_key into dQ of one tile of queries."""
    for start in tl.range(first_key, last_key, BLOCK_N):
        key = load_tile(
            k, batch, head, start, n_keys, stride_kb, stride_kh, stride_kn, HEAD_DIM, BLOCK_N, BLOCK_D, False
        )
        value = load_tile(
            v, batch, head, start, n_keys, stride_vb, stride_vh, stride_vn, HEAD_DIM, BLOCK_N, BLOCK_D, False
        )
        scores = tl.dot(query, key.T, input_precision=PRECISION)
        probabilities = tl.exp2((scores * scale - log_sum[:, None]) * LOG2_E)
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)[None, :]
            visible = keys < n_keys
            if IS_CAUSAL:
                visible &= keys <= first_query + tl.arange(0, BLOCK_M)[:, None]
            probabilities = tl.where(visible, probabilities, 0.0)
        dp = tl.dot(grad, value.T, input_precision=PRECISION)
        ds = (probabilities * (dp - row_delta[:, None])).to(key.dtype)
        acc = tl.dot(ds, key, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _query_gradient(
    tile,
    batch,
    head,
    q,
    k,
    v,
    o,
    grad_o,
    lse,
    dq,
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
    heads,
    n_queries,
    n_keys,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dQ of one tile of queries."""
    first_query = tile * BLOCK_M
    stop = n_keys
    full = n_keys // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        stop = tl.minimum(n_keys, first_query + BLOCK_M)
        full = tl.minimum(full, (first_query + 1) // BLOCK_N * BLOCK_N)
    query = load_tile(
        q, batch, head, first_query, n_queries, stride_qb, stride_qh, stride_qn, HEAD_DIM, BLOCK_M, BLOCK_D, False
    )
    grad = load_tile(
        grad_o,
        batch,
        head,
        first_query,
        n_queries,
        stride_gb,
        stride_gh,
        stride_gn,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_D,
        False,
    )
    log_sum, row_delta = row_statistics(
        grad,
        o,
        lse,
        batch,
        head,
        heads,
        first_query,
        n_queries,
        stride_ob,
        stride_oh,
        stride_on,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_D,
    )
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):
        acc = _add_keys(
            acc,
            query,
            grad,
            log_sum,
            row_delta,
            k,
            v,
            batch,
            head,
            first_query,
            full if masked else 0,
            stop if masked else full,
            n_keys,
            stride_kb,
            stride_kh,
            stride_kn,
            stride_vb,
            stride_vh,
            stride_vn,
            scale,
            HEAD_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            IS_CAUSAL,
            masked == 1,
            PRECISION,
        )
    store_tile(
        dq,
        acc * scale,
        batch,
        head,
        first_query,
        n_queries,
        stride_dqb,
        stride_dqh,
        stride_dqn,
        HEAD_DIM,
        BLOCK_M,
        BLOCK_D,
    )


@triton.jit
def two_pass_kernel(
    q,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    k,  # pointer, [batch, heads, n_keys, HEAD_DIM]
    v,  # likewise
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    grad_o,  # likewise
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    dk,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    dv,  # likewise
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
    n_keys,
    key_tiles,
    query_tiles,
    scale,  # 1 / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dK and dV in the first key_tiles x batch_heads programs, dQ in the query_tiles x batch_heads after them."""
    batch_head = tl.program_id(0) % batch_heads
    batch = batch_head // heads
    head = batch_head % heads
    tile = tl.program_id(0) // batch_heads
    if tile < key_tiles:
        key_gradients(
            tile,
            batch,
            head,
            q,
            k,
            v,
            o,
            grad_o,
            lse,
            lse,  # delta, dq_sum: of the single pass
            dq,
            dk,
            dv,
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
            stride_dkb,
            stride_dkh,
            stride_dkn,
            stride_dvb,
            stride_dvh,
            stride_dvn,
            heads,
            n_queries,
            0,  # n_padded: of the single pass
            n_keys,
            scale,
            0.0,  # scale_log2: of the single pass
            HEAD_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            IS_CAUSAL,
            False,
            False,
            False,
            PRECISION,
        )
    else:
        # The last queries see the most keys: longest tiles first.
        _query_gradient(
            key_tiles + query_tiles - 1 - tile,
            batch,
            head,
            q,
            k,
            v,
            o,
            grad_o,
            lse,
            dq,
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
            heads,
            n_queries,
            n_keys,
            scale,
            HEAD_DIM,
            BLOCK_N,
            BLOCK_M,
            BLOCK_D,
            IS_CAUSAL,
            PRECISION,
        )
