"""dK and dV in the backward kernel: one tile of keys, summed over the queries."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_backward_preprocess import load_lse_delta, recompute_p
from cs336_systems.attention.triton_load_store import load_tile, store_tile
from cs336_systems.attention.triton_options import cap_scores, is_visible, visible_queries, zero_rows_from


@triton.jit
def backward_dkdv(
    start_n,  # first key of the tile
    inputs,  # q_head, k_head, v_head, do_head, lse_delta, softmax_scale, first_q and first_k, as in backward_kernel
    dk_head,
    dv_head,
    window_left,
    window_right,
    softcap,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per iteration
    BLOCK_N: tl.constexpr,  # keys per program
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PREPROCESSED: tl.constexpr,
    PACKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute dK = dS^T Q / sqrt(d) and dV = P^T dO of one tile of BLOCK_N keys."""
    q_head, k_head, v_head, do_head, lse_delta, softmax_scale, first_q, first_k = inputs
    n_queries = q_head.n_rows - first_q
    n_keys = k_head.n_rows - first_k
    begin, begin_unmasked, end_unmasked, end = visible_queries(
        start_n, n_queries, n_keys, window_left, window_right, BLOCK_M, BLOCK_N, IS_CAUSAL, PACKED
    )
    end_masked = begin_unmasked + (end - end_unmasked)  # queries from end_unmasked on are shifted to begin_unmasked

    k_tile = load_tile(k_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
    v_tile = load_tile(v_head, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for tile_m in tl.range(begin if masked else begin_unmasked, end_masked if masked else end_unmasked, BLOCK_M):
            start_m = tile_m
            if masked and (PACKED or window_left is not None):
                start_m += tl.where(tile_m < begin_unmasked, 0, end_unmasked - begin_unmasked)
            q_tile = load_tile(q_head, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
            do_tile = load_tile(do_head, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
            lse_tile, delta = load_lse_delta(
                lse_delta, do_tile, first_q + start_m, HEAD_DIM, BLOCK_M, BLOCK_D, PREPROCESSED, PACKED, DESCRIPTORS
            )
            if masked and PACKED and DESCRIPTORS:
                q_tile = zero_rows_from(q_tile, n_queries - start_m, BLOCK_M)
                do_tile = zero_rows_from(do_tile, n_queries - start_m, BLOCK_M)
            # Scores are transposed, [keys, queries]: P^T and dS^T then feed the next matmuls from registers.
            scores = tl.dot(k_tile, q_tile.T, input_precision=INPUT_PRECISION)
            scores, scale = cap_scores(scores, softmax_scale, softcap, q_tile.dtype == tl.float32)
            p = recompute_p(scores, lse_tile[None, :], scale, q_tile.dtype == tl.float32)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[:, None]
                offs_m = start_m + tl.arange(0, BLOCK_M)[None, :]
                p = tl.where(is_visible(offs_m, offs_n, n_keys, window_left, window_right, IS_CAUSAL), p, 0.0)
            dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision=INPUT_PRECISION)
            dp = tl.dot(v_tile, do_tile.T, input_precision=INPUT_PRECISION)
            ds = p * (dp - delta[None, :])
            if softcap is not None:
                ds *= 1 - scores * scores  # the derivative of tanh
            dk = tl.dot(ds.to(q_tile.dtype), q_tile, dk, input_precision=INPUT_PRECISION)
    store_tile(dk_head, dk * softmax_scale, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D)
    store_tile(dv_head, dv, first_k + start_n, HEAD_DIM, BLOCK_N, BLOCK_D)
