"""FlashAttention-2's forward pass as one Triton kernel."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_load_store import LOWEST, Head, load_tile, locate, store_tile

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def forward_kernel(
    q,  # [batch, heads, n_queries, HEAD_DIM]: a tensor descriptor if DESCRIPTORS, else a pointer; so are k and v
    k,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
    v,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
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
    group,  # heads whose tiles are interleaved in the launch order
    heads,
    n_queries,
    n_keys,
    softmax_scale_log2,  # log2(e) / sqrt(HEAD_DIM)
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
    batch_head, tile = locate(group, tiles)
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // HEADS_PER_KV_HEAD
    q_head = Head(q, (stride_qb, stride_qh, stride_qn), batch, head, n_queries)
    k_head = Head(k, (stride_kb, stride_kh, stride_kn), batch, kv_head, n_keys)
    v_head = Head(v, (stride_vb, stride_vh, stride_vn), batch, kv_head, n_keys)
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, n_queries)

    # With a causal mask the last queries see the most keys, so the longest tiles come first: the last programs are
    # short, and the SMs finish together.
    if IS_CAUSAL:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M

    # Keys 0 ... end_unmasked are visible to every query of the tile, end_unmasked ... end_n to some of them.
    end_n = n_keys
    end_unmasked = n_keys // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        end_n = tl.minimum(n_keys, start_m + BLOCK_M)
        end_unmasked = tl.minimum(end_unmasked, (start_m + 1) // BLOCK_N * BLOCK_N)

    q_tile = load_tile(q_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)  # unnormalized output
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)  # of the scores, in units of log2
    row_sum = tl.zeros([BLOCK_M], tl.float32)  # of the exponentials
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start_n in tl.range(end_unmasked if masked else 0, end_n if masked else end_unmasked, BLOCK_N):
            # The online softmax, lines 6 to 11 of Algorithm 1.
            k_tile = load_tile(k_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            scores = tl.dot(q_tile, k_tile.T, input_precision=INPUT_PRECISION)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[None, :]
                visible = offs_n < n_keys
                if IS_CAUSAL:
                    visible &= offs_n <= start_m + tl.arange(0, BLOCK_M)[:, None]
                scores = tl.where(visible, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1) * softmax_scale_log2)
            # exp2 is one instruction where exp is two; the scale joins the subtraction in one fused multiply-add.
            p = tl.exp2(scores * softmax_scale_log2 - new_max[:, None])
            correction = tl.exp2(row_max - new_max)
            row_sum = row_sum * correction + tl.sum(p, 1)
            acc = acc * correction[:, None]
            v_tile = load_tile(v_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=INPUT_PRECISION)
            row_max = new_max

    # A row whose scores are all -inf has no probabilities: its output is zero, as SDPA's is, and its L is -inf.
    divisor = tl.where(row_sum == 0, 1.0, row_sum)
    store_tile(o_head, acc / divisor[:, None], start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    lse_tile = (row_max + tl.log2(row_sum)) * LN_2
    tl.store(lse + batch_head.to(tl.int64) * n_queries + offs_m, lse_tile, mask=offs_m < n_queries)
