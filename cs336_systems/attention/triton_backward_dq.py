"""dQ in the backward kernel: one tile of queries, summed over the keys."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_backward_preprocess import load_lse_delta, recompute_p
from cs336_systems.attention.triton_load_store import load_tile, store_tile
from cs336_systems.attention.triton_options import cap_scores, is_visible, visible_keys, zero_rows_from


@triton.jit
def backward_dq(
    start_m,  # first query of the tile
    inputs,  # q_head, k_head, v_head, do_head, lse_delta, softmax_scale, first_q and first_k, as in backward_kernel
    dq_head,
    window_left,
    window_right,
    softcap,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per program
    BLOCK_N: tl.constexpr,  # keys per iteration
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PREPROCESSED: tl.constexpr,
    PACKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute dQ = dS K / sqrt(d) of one tile of BLOCK_M queries."""
    q_head, k_head, v_head, do_head, lse_delta, softmax_scale, first_q, first_k = inputs
    n_keys = k_head.n_rows - first_k
    begin, begin_unmasked, end_unmasked, end = visible_keys(
        start_m, n_keys, window_left, window_right, BLOCK_M, BLOCK_N, IS_CAUSAL
    )
    begin_masked = end_unmasked - (begin_unmasked - begin)  # as in the forward kernel

    q_tile = load_tile(q_head, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    do_tile = load_tile(do_head, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    lse_tile, delta = load_lse_delta(
        lse_delta, do_tile, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, PREPROCESSED, PACKED, DESCRIPTORS
    )
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for tile_n in tl.range(begin_masked if masked else begin_unmasked, end if masked else end_unmasked, BLOCK_N):
            start_n = tile_n
            if masked and window_left is not None:
                start_n -= tl.where(tile_n < end_unmasked, end_unmasked - begin_unmasked, 0)
            k_tile = load_tile(k_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            v_tile = load_tile(v_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            if masked and PACKED and DESCRIPTORS:
                k_tile = zero_rows_from(k_tile, n_keys - start_n, BLOCK_N)
                v_tile = zero_rows_from(v_tile, n_keys - start_n, BLOCK_N)
            scores = tl.dot(q_tile, k_tile.T, input_precision=INPUT_PRECISION)
            scores, scale = cap_scores(scores, softmax_scale, softcap, q_tile.dtype == tl.float32)
            p = recompute_p(scores, lse_tile[:, None], scale, q_tile.dtype == tl.float32)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[None, :]
                offs_m = start_m + tl.arange(0, BLOCK_M)[:, None]
                p = tl.where(is_visible(offs_m, offs_n, n_keys, window_left, window_right, IS_CAUSAL), p, 0.0)
            dp = tl.dot(do_tile, v_tile.T, input_precision=INPUT_PRECISION)
            ds = p * (dp - delta[:, None])
            if softcap is not None:
                ds *= 1 - scores * scores  # the derivative of tanh
            dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision=INPUT_PRECISION)
    store_tile(dq_head, dq * softmax_scale, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
