"""FlashAttention-2's forward pass as one Triton kernel."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_load_store import LOWEST, Head, load_tile, locate, store_tile
from cs336_systems.attention.triton_options import (
    LOG2_E,
    cap_scores,
    is_visible,
    locate_in_documents,
    visible_keys,
    zero_rows_from,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["window_left", "window_right", "documents"])
def forward_kernel(
    q,  # [batch, heads, n_queries, HEAD_DIM]: a tensor descriptor if DESCRIPTORS, else a pointer; so are k and v
    k,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
    v,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    lse,  # pointer, [batch, heads, n_queries] fp32, out: log-sum-exp of the scaled scores, natural logarithm
    sinks,  # pointer, [heads]; None for none, as all options
    cu_seqlens_q,  # pointer, [documents + 1] int32; documents are packed in a batch of one
    cu_seqlens_k,
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
    group,  # heads whose tiles are interleaved in the launch order
    heads,
    n_queries,
    n_keys,
    softmax_scale_log2,  # log2(e) / sqrt(HEAD_DIM)
    window_left,
    window_right,
    softcap_log2,  # softcap log2(e)
    documents,
    HEADS_PER_KV_HEAD: tl.constexpr,  # neighbouring heads of q that share one of k and v
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per program
    BLOCK_N: tl.constexpr,  # keys per iteration
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to a power of two
    IS_CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,  # of the matmuls, as in tl.dot
):
    """Compute attention of one tile of queries; the grid is (query tiles x batch x heads)."""
    tiles = tl.cdiv(n_queries, BLOCK_M)
    if cu_seqlens_q is not None:
        tiles = n_queries // BLOCK_M + documents + 1
    batch_head, tile = locate(group, tiles)
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // HEADS_PER_KV_HEAD

    # With a causal mask the last queries see the most keys, so the longest tiles come first: the last programs are
    # short, and the SMs finish together.
    if IS_CAUSAL:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    total_queries = n_queries  # of all documents
    first_q = 0  # of the document; so is first_k
    first_k = 0
    PACKED: tl.constexpr = cu_seqlens_q is not None
    if PACKED:
        start_m, first_q, n_queries, first_k, n_keys = locate_in_documents(
            tile, cu_seqlens_q, cu_seqlens_k, documents, n_queries, BLOCK_M
        )
    q_head = Head(q, (stride_qb, stride_qh, stride_qn), batch, head, first_q + n_queries)
    k_head = Head(k, (stride_kb, stride_kh, stride_kn), batch, kv_head, first_k + n_keys)
    v_head = Head(v, (stride_vb, stride_vh, stride_vn), batch, kv_head, first_k + n_keys)
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, first_q + n_queries)
    begin, begin_unmasked, end_unmasked, end = visible_keys(
        start_m, n_keys, window_left, window_right, BLOCK_M, BLOCK_N, IS_CAUSAL
    )
    begin_masked = end_unmasked - (begin_unmasked - begin)  # keys before begin_unmasked are shifted to end_unmasked

    q_tile = load_tile(q_head, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)  # unnormalized output
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)  # of the scores, in units of log2
    row_sum = tl.zeros([BLOCK_M], tl.float32)  # of the exponentials
    if sinks is not None:  # the first score, whose value is zero
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        row_max = tl.maximum(row_max, sink)
        row_sum = tl.exp2(sink - row_max)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for tile_n in tl.range(begin_masked if masked else begin_unmasked, end if masked else end_unmasked, BLOCK_N):
            start_n = tile_n
            if masked and window_left is not None:
                start_n -= tl.where(tile_n < end_unmasked, end_unmasked - begin_unmasked, 0)
            # The online softmax, lines 6 to 11 of Algorithm 1.
            k_tile = load_tile(k_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            scores = tl.dot(q_tile, k_tile.T, input_precision=INPUT_PRECISION)
            scores, scale = cap_scores(scores, softmax_scale_log2, softcap_log2, q_tile.dtype == tl.float32)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[None, :]
                offs_m = start_m + tl.arange(0, BLOCK_M)[:, None]
                visible = is_visible(offs_m, offs_n, n_keys, window_left, window_right, IS_CAUSAL)
                scores = tl.where(visible, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
            # exp2 is one instruction and exp two; the scale and the subtraction are one fused multiply-add.
            p = tl.exp2(scores * scale - new_max[:, None])
            correction = tl.exp2(row_max - new_max)
            row_sum = row_sum * correction + tl.sum(p, 1)
            acc = acc * correction[:, None]
            v_tile = load_tile(v_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            if masked and PACKED and DESCRIPTORS:
                v_tile = zero_rows_from(v_tile, n_keys - start_n, BLOCK_N)
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=INPUT_PRECISION)
            row_max = new_max

    # A row without probabilities (all scores are -inf, or it sees no key) is zero, as in SDPA, and its L is -inf.
    divisor = tl.where(row_sum == 0, 1.0, row_sum)
    store_tile(o_head, acc / divisor[:, None], first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    lse_tile = (row_max + tl.log2(row_sum)) * LN_2
    tl.store(lse + batch_head.to(tl.int64) * total_queries + first_q + offs_m, lse_tile, mask=offs_m < n_queries)
