"""dK and dV of one tile of keys: the part that both backward kernels share.

With P = exp(S - L) recomputed tile by tile and D = rowsum(O * dO), the gradients are (FlashAttention-2, Algorithm 2)

    dV = P^T dO,   dS = P * (dO V^T - D),   dQ = dS K / sqrt(d),   dK = dS^T Q / sqrt(d).

A program that owns a tile of keys sums dK and dV over the queries. dQ needs a sum over the keys, and there the two
kernels part: triton_single_pass.py adds each program's share to one buffer, triton_two_pass.py computes P again.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_tiles import load_tile, store_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_statistics(
    grad,  # [BLOCK_M, BLOCK_D], the tile of dO
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]
    lse,  # pointer, [batch, heads, n_queries] fp32, natural logarithm
    batch,
    head,
    heads,
    start,
    n_queries,
    stride_ob,
    stride_oh,
    stride_on,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """L, infinite beyond n_queries so that P = 0 there, and D = rowsum(O * dO), [BLOCK_M] each."""
    out = load_tile(
        o, batch, head, start, n_queries, stride_ob, stride_oh, stride_on, HEAD_DIM, BLOCK_M, BLOCK_D, False
    )
    queries = start + tl.arange(0, BLOCK_M)
    first = (batch * heads + head).to(tl.int64) * n_queries
    natural = tl.load(lse + first + queries, mask=queries < n_queries, other=float("inf"))
    return natural, tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)


@triton.jit
def _add_queries(
    dk,  # [BLOCK_N, BLOCK_D] fp32, running sum
    dv,  # [BLOCK_N, BLOCK_D] fp32, running sum
    key,  # [BLOCK_N, BLOCK_D]
    value,  # [BLOCK_N, BLOCK_D]
    q,
    o,
    grad_o,
    lse,
    delta,
    dq_sum,
    batch,
    head,
    heads,
    first_key,
    first_query,
    last_query,  # exclusive
    n_queries,
    n_padded,
    n_keys,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_ob,
    stride_oh,
    stride_on,
    stride_gb,
    stride_gh,
    stride_gn,
    scale,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    SINGLE_PASS: tl.constexpr,
    TMA_REDUCE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold the queries first_query ... last_query into the gradients of one tile of keys and values."""
    batch_head = (batch * heads + head).to(tl.int64)
    for start in tl.range(first_query, last_query, BLOCK_M):
        query = load_tile(
            q, batch, head, start, n_queries, stride_qb, stride_qh, stride_qn, HEAD_DIM, BLOCK_M, BLOCK_D, SINGLE_PASS
        )
        grad = load_tile(
            grad_o,
            batch,
            head,
            start,
            n_queries,
            stride_gb,
            stride_gh,
            stride_gn,
            HEAD_DIM,
            BLOCK_M,
            BLOCK_D,
            SINGLE_PASS,
        )
        if SINGLE_PASS:
            # Through descriptors as well: as plain loads they cost every thread one asynchronous copy a number.
            log_sum = lse.load([(batch_head * n_padded + start).to(tl.int32)])
            row_delta = delta.load([(batch_head * n_padded + start).to(tl.int32)])
        else:
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
        # Scores stand transposed, [keys, queries]: P^T and dS^T then feed the next products straight from registers.
        scores = tl.dot(key, query.T, input_precision=PRECISION)
        if TRANSPOSED:  # dP before the exponentials is faster with a transposed dQ, after them with a plain one
            dp = tl.dot(value, grad.T, input_precision=PRECISION)
        if SINGLE_PASS:
            probabilities = tl.exp2(scores * scale_log2 - log_sum[None, :])
        else:
            # L unconverted: where scores are in the hundreds, one more rounding of L shows in fp32.
            probabilities = tl.exp2((scores * scale - log_sum[None, :]) * LOG2_E)
        if MASKED:
            keys = first_key + tl.arange(0, BLOCK_N)[:, None]
            visible = keys < n_keys
            if IS_CAUSAL:
                visible &= keys <= start + tl.arange(0, BLOCK_M)[None, :]
            probabilities = tl.where(visible, probabilities, 0.0)
        dv = tl.dot(probabilities.to(grad.dtype), grad, dv, input_precision=PRECISION)
        if not TRANSPOSED:
            dp = tl.dot(value, grad.T, input_precision=PRECISION)
        ds = (probabilities * (dp - row_delta[None, :])).to(query.dtype)
        dk = tl.dot(ds, query, dk, input_precision=PRECISION)
        if SINGLE_PASS:
            # This tile's share of dQ, or of its transpose: then dS is read from shared memory as the second operand.
            if TRANSPOSED:
                dq = tl.dot(key.T, ds, input_precision=PRECISION)
                row = (batch_head * BLOCK_D).to(tl.int32)
                column = start
                width = n_padded
            else:
                dq = tl.dot(ds.T, key, input_precision=PRECISION)
                row = (batch_head * n_padded + start).to(tl.int32)
                column = 0
                width = BLOCK_D
            if TMA_REDUCE:
                dq_sum.atomic_add([row, column], dq)
            else:
                rows = row + tl.arange(0, dq.shape[0])
                columns = column + tl.arange(0, dq.shape[1])
                tl.atomic_add(dq_sum + rows[:, None] * width + columns[None, :], dq, sem="relaxed")
    return dk, dv


@triton.jit
def key_gradients(
    tile,
    batch,
    head,
    q,  # [batch, heads, n_queries, HEAD_DIM]: a descriptor if SINGLE_PASS, else a pointer; so are k, v, grad_o
    k,
    v,
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]; not read if SINGLE_PASS
    grad_o,
    lse,  # fp32: if SINGLE_PASS a descriptor, as in single_pass_kernel, else a pointer, as in row_statistics
    delta,  # SINGLE_PASS: descriptor, [batch x heads x n_padded] fp32: D
    dq_sum,  # SINGLE_PASS: as in single_pass_kernel
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
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    SINGLE_PASS: tl.constexpr,
    TMA_REDUCE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dK and dV of one tile of keys, and (if SINGLE_PASS) this tile's share of dQ."""
    first_key = tile * BLOCK_N
    # Queries first ... masked_stop see some of the keys, masked_stop ... n_queries see all of them.
    first_query = 0
    masked_stop = 0
    if IS_CAUSAL:
        first_query = first_key // BLOCK_M * BLOCK_M
        masked_stop = tl.minimum(tl.cdiv(first_key + BLOCK_N, BLOCK_M) * BLOCK_M, n_queries)
    if first_key + BLOCK_N > n_keys:
        masked_stop = n_queries

    key = load_tile(
        k, batch, head, first_key, n_keys, stride_kb, stride_kh, stride_kn, HEAD_DIM, BLOCK_N, BLOCK_D, SINGLE_PASS
    )
    value = load_tile(
        v, batch, head, first_key, n_keys, stride_vb, stride_vh, stride_vn, HEAD_DIM, BLOCK_N, BLOCK_D, SINGLE_PASS
    )
    dk_sum = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_sum = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):
        dk_sum, dv_sum = _add_queries(
            dk_sum,
            dv_sum,
            key,
            value,
            q,
            o,
            grad_o,
            lse,
            delta,
            dq_sum,
            batch,
            head,
            heads,
            first_key,
            first_query if masked else masked_stop,
            masked_stop if masked else n_queries,
            n_queries,
            n_padded,
            n_keys,
            stride_qb,
            stride_qh,
            stride_qn,
            stride_ob,
            stride_oh,
            stride_on,
            stride_gb,
            stride_gh,
            stride_gn,
            scale,
            scale_log2,
            HEAD_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            IS_CAUSAL,
            masked == 1,
            SINGLE_PASS,
            TMA_REDUCE,
            TRANSPOSED,
            PRECISION,
        )
    store_tile(
        dk,
        dk_sum * scale,
        batch,
        head,
        first_key,
        n_keys,
        stride_dkb,
        stride_dkh,
        stride_dkn,
        HEAD_DIM,
        BLOCK_N,
        BLOCK_D,
    )
    store_tile(
        dv, dv_sum, batch, head, first_key, n_keys, stride_dvb, stride_dvh, stride_dvn, HEAD_DIM, BLOCK_N, BLOCK_D
    )
