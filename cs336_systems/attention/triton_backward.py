"""FlashAttention-2's backward pass as one Triton kernel, bitwise reproducible.

With P = exp(S - L) recomputed tile by tile and D = rowsum(O * dO), the gradients are (FlashAttention-2, Algorithm 2)

    dV = P^T dO,   dS = P * (dO V^T - D),   dQ = dS K / sqrt(d),   dK = dS^T Q / sqrt(d).

Some programs own a tile of keys and sum dK and dV over the queries, the others own a tile of queries and sum dQ over
the keys. So S and dO V^T are computed twice: 7 matmuls instead of 5. A single pass, in which every program adds its
share of dQ to one buffer, was also built and is slower on an H200 (docs/kernel-notes.md).

In all kernels BLOCK_M counts queries and BLOCK_N counts keys. A program here owns BLOCK_OUTER rows and loops over
BLOCK_INNER rows at a time, so that

                    BLOCK_M      BLOCK_N
    backward_dkdv   BLOCK_INNER  BLOCK_OUTER
    backward_dq     BLOCK_OUTER  BLOCK_INNER
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_backward_dkdv import backward_dkdv
from cs336_systems.attention.triton_backward_dq import backward_dq
from cs336_systems.attention.triton_backward_preprocess import LseDelta
from cs336_systems.attention.triton_load_store import Head, locate
from cs336_systems.attention.triton_options import locate_in_documents


@triton.jit(do_not_specialize=["window_left", "window_right", "documents"])
def backward_kernel(
    q,  # [batch, heads, n_queries, HEAD_DIM]: a tensor descriptor if DESCRIPTORS, else a pointer; so are k, v and do
    k,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
    v,  # [batch, heads / HEADS_PER_KV_HEAD, n_keys, HEAD_DIM]
    do,  # [batch, heads, n_queries, HEAD_DIM]
    lse_delta,  # [batch, heads, 2, n_queries_rounded] fp32 if PREPROCESSED, else lse, [batch, heads, n_queries]
    o,  # pointer, [batch, heads, n_queries, HEAD_DIM]; not read if PREPROCESSED
    dq,  # pointer, [batch, heads, n_queries, HEAD_DIM], out
    dk,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    dv,  # pointer, [batch, heads, n_keys, HEAD_DIM], out
    cu_seqlens_q,  # pointer, [documents + 1] int32; None for none, as all options; needs PREPROCESSED
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
    stride_dob,
    stride_doh,
    stride_don,
    stride_ob,
    stride_oh,
    stride_on,
    stride_dqb,
    stride_dqh,
    stride_dqn,
    stride_dkb,
    stride_dkh,
    stride_dkn,
    stride_dvb,
    stride_dvh,
    stride_dvn,
    group,  # heads whose tiles are interleaved in the launch order
    heads,
    n_queries,
    n_queries_rounded,  # n_queries rounded up to whole tiles
    n_keys,
    key_tiles,  # number of programs per head that compute dK and dV
    query_tiles,  # number of programs per head that compute dQ
    softmax_scale,  # 1 / sqrt(HEAD_DIM)
    window_left,
    window_right,
    softcap,
    documents,
    HEADS_PER_KV_HEAD: tl.constexpr,  # neighbouring heads of q that share one of k and v
    HEAD_DIM: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,  # keys per program for dK and dV, queries per program for dQ
    BLOCK_INNER: tl.constexpr,  # queries per iteration for dK and dV, keys per iteration for dQ
    BLOCK_D: tl.constexpr,  # HEAD_DIM padded to a power of two
    IS_CAUSAL: tl.constexpr,
    PREPROCESSED: tl.constexpr,  # preprocess_kernel has run
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,  # of the matmuls, as in tl.dot
):
    """Compute dK and dV, then dQ, of each head; the grid is ((key_tiles + query_tiles) x batch x heads)."""
    batch_head, tile = locate(group, key_tiles + query_tiles)
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // HEADS_PER_KV_HEAD
    first_q = 0  # of the document; so is first_k
    first_k = 0
    PACKED: tl.constexpr = cu_seqlens_q is not None
    if PACKED:
        if tile < key_tiles:
            start, first_k, n_keys, first_q, n_queries = locate_in_documents(
                tile, cu_seqlens_k, cu_seqlens_q, documents, n_keys, BLOCK_OUTER
            )
        else:
            start, first_q, n_queries, first_k, n_keys = locate_in_documents(
                key_tiles + query_tiles - 1 - tile, cu_seqlens_q, cu_seqlens_k, documents, n_queries, BLOCK_OUTER
            )
    q_head = Head(q, (stride_qb, stride_qh, stride_qn), batch, head, first_q + n_queries)
    k_head = Head(k, (stride_kb, stride_kh, stride_kn), batch, kv_head, first_k + n_keys)
    v_head = Head(v, (stride_vb, stride_vh, stride_vn), batch, kv_head, first_k + n_keys)
    o_head = Head(o, (stride_ob, stride_oh, stride_on), batch, head, first_q + n_queries)
    do_head = Head(do, (stride_dob, stride_doh, stride_don), batch, head, first_q + n_queries)
    dq_head = Head(dq, (stride_dqb, stride_dqh, stride_dqn), batch, head, first_q + n_queries)
    dk_head = Head(dk, (stride_dkb, stride_dkh, stride_dkn), batch, head, first_k + n_keys)
    dv_head = Head(dv, (stride_dvb, stride_dvh, stride_dvn), batch, head, first_k + n_keys)
    lse_delta_head = LseDelta(lse_delta, o_head, heads, n_queries_rounded)
    inputs = (q_head, k_head, v_head, do_head, lse_delta_head, softmax_scale, first_q, first_k)

    # With a causal mask the first keys are seen by the most queries and the last queries see the most keys, so the
    # longest tiles come first: the last programs are short, and the SMs finish together.
    if tile < key_tiles:
        start_n = start if PACKED else tile * BLOCK_OUTER
        backward_dkdv(
            *(start_n, inputs, dk_head, dv_head, window_left, window_right, softcap, HEAD_DIM),
            *(BLOCK_INNER, BLOCK_OUTER, BLOCK_D, IS_CAUSAL, PREPROCESSED, PACKED, DESCRIPTORS, INPUT_PRECISION),
        )
    else:
        start_m = start if PACKED else (key_tiles + query_tiles - 1 - tile) * BLOCK_OUTER
        backward_dq(
            *(start_m, inputs, dq_head, window_left, window_right, softcap, HEAD_DIM),
            *(BLOCK_OUTER, BLOCK_INNER, BLOCK_D, IS_CAUSAL, PREPROCESSED, PACKED, DESCRIPTORS, INPUT_PRECISION),
        )
