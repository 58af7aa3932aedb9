"""dQ in the backward kernel: one tile of queries, summed over the keys."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_backward_preprocess import load_lse_delta, recompute_p
from cs336_systems.attention.triton_load_store import load_tile, store_tile


@triton.jit
def backward_dq(
    start_m,  # first query of the tile
    inputs,  # q_head, k_head, v_head, do_head, lse_delta and softmax_scale, as in backward_kernel
    dq_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per program
    BLOCK_N: tl.constexpr,  # keys per iteration
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PREPROCESSED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute dQ = dS K / sqrt(d) of one tile of BLOCK_M queries."""
    q_head, k_head, v_head, do_head, lse_delta, softmax_scale = inputs
    n_keys = k_head.n_rows
    # Keys 0 ... end_unmasked are visible to every query of the tile, end_unmasked ... end_n to some of them.
    end_n = n_keys
    end_unmasked = n_keys // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        end_n = tl.minimum(n_keys, start_m + BLOCK_M)
        end_unmasked = tl.minimum(end_unmasked, (start_m + 1) // BLOCK_N * BLOCK_N)

    q_tile = load_tile(q_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    do_tile = load_tile(do_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
    lse_tile, delta = load_lse_delta(lse_delta, do_tile, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, PREPROCESSED, DESCRIPTORS)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start_n in tl.range(end_unmasked if masked else 0, end_n if masked else end_unmasked, BLOCK_N):
            k_tile = load_tile(k_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            v_tile = load_tile(v_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
            scores = tl.dot(q_tile, k_tile.T, input_precision=INPUT_PRECISION)
            p = recompute_p(scores, lse_tile[:, None], softmax_scale, q_tile.dtype == tl.float32)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[None, :]
                visible = offs_n < n_keys
                if IS_CAUSAL:
                    visible &= offs_n <= start_m + tl.arange(0, BLOCK_M)[:, None]
                p = tl.where(visible, p, 0.0)
            dp = tl.dot(do_tile, v_tile.T, input_precision=INPUT_PRECISION)
            ds = (p * (dp - delta[:, None])).to(k_tile.dtype)
            dq = tl.dot(ds, k_tile, dq, input_precision=INPUT_PRECISION)
    store_tile(dq_head, dq * softmax_scale, start_m, HEAD_DIM, BLOCK_M, BLOCK_D)
