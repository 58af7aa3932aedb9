"""FlashAttention-2's forward pass as one Triton kernel."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_tiles import load_tile, store_tile

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def forward_kernel(
    q,  # [batch, heads, n_queries, HEAD_DIM]: a tensor descriptor if DESCRIPTORS, else a pointer; so are k and v
    k,  # [batch, heads, n_keys, HEAD_DIM]
    v,  # [batch, heads, n_keys, HEAD_DIM]
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    lse,  # pointer, [batch, heads, n_queries] fp32, out: log-sum-exp of the scaled scores, natural logarithm
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
    batch_heads,
    heads,
    n_queries,
    n_keys,
    scale_log2,  # log2(e) / sqrt(HEAD_DIM)
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries that a program owns
    BLOCK_N: tl.constexpr,  # keys that it takes at a time
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of queries against all its keys; grid (query tiles x batch x heads)."""
    q_strides = (stride_qb, stride_qh, stride_qn)
    k_strides = (stride_kb, stride_kh, stride_kn)
    v_strides = (stride_vb, stride_vh, stride_vn)
    o_strides = (stride_ob, stride_oh, stride_on)
    batch_head = tl.program_id(0) % batch_heads
    batch = batch_head // heads
    head = batch_head % heads
    # Tile by tile over all heads. If causal, the last queries see the most keys: longest tiles first, so that what
    # starts last is short and the multiprocessors finish together.
    tile = tl.program_id(0) // batch_heads
    if IS_CAUSAL:
        tile = tl.cdiv(n_queries, BLOCK_M) - 1 - tile
    first_query = tile * BLOCK_M

    # Keys 0 ... full are visible to every query of the tile, full ... stop to some of them.
    stop = n_keys
    full = n_keys // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        stop = tl.minimum(n_keys, first_query + BLOCK_M)
        full = tl.minimum(full, (first_query + 1) // BLOCK_N * BLOCK_N)

    query = load_tile(q, q_strides, batch, head, first_query, n_queries, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)  # unnormalized output
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # of the scores, in units of log2
    row_sum = tl.zeros([BLOCK_M], tl.float32)  # of the exponentials
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start in tl.range(full if masked else 0, stop if masked else full, BLOCK_N):
            # The online softmax, lines 6 to 11 of Algorithm 1.
            key = load_tile(k, k_strides, batch, head, start, n_keys, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            scores = tl.dot(query, key.T, input_precision=PRECISION)
            if masked:
                keys = start + tl.arange(0, BLOCK_N)[None, :]
                visible = keys < n_keys
                if IS_CAUSAL:
                    visible &= keys <= first_query + tl.arange(0, BLOCK_M)[:, None]
                scores = tl.where(visible, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
            # exp2 is one instruction where exp is two; the scale joins the subtraction in one fused multiply-add.
            probabilities = tl.exp2(scores * scale_log2 - new_max[:, None])
            correction = tl.exp2(row_max - new_max)
            row_sum = row_sum * correction + tl.sum(probabilities, 1)
            acc = acc * correction[:, None]
            value = load_tile(v, v_strides, batch, head, start, n_keys, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            acc = tl.dot(probabilities.to(value.dtype), value, acc, input_precision=PRECISION)
            row_max = new_max

    out = acc / row_sum[:, None]
    store_tile(o, out, o_strides, batch, head, first_query, n_queries, HEAD_DIM, BLOCK_M, BLOCK_D)
    queries = first_query + tl.arange(0, BLOCK_M)
    natural = (row_max + tl.log2(row_sum)) * LN_2
    tl.store(lse + batch_head.to(tl.int64) * n_queries + queries, natural, mask=queries < n_queries)
