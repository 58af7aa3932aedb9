"""dK and dV in the backward kernel: one tile of keys, summed over the queries."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_backward_preprocess import load_lse_delta, recompute_p
from cs336_systems.attention.triton_load_store import load_tile, store_tile


@triton.jit
def backward_dkdv(
    start_n,  # first key of the tile
    inputs,  # q_head, k_head, v_head, do_head, lse_delta and softmax_scale, as in backward_kernel
    dk_head,
    dv_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # queries per iteration
    BLOCK_N: tl.constexpr,  # keys per program
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PREPROCESSED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute dK = dS^T Q / sqrt(d) and dV = P^T dO of one tile of BLOCK_N keys."""
    q_head, k_head, v_head, do_head, lse_delta, softmax_scale = inputs
    n_queries = q_head.n_rows
    n_keys = k_head.n_rows
    # Queries start_masked ... end_masked see some of the keys, end_masked ... n_queries see all of them.
    start_masked = 0
    end_masked = 0
    if IS_CAUSAL:
        start_masked = start_n // BLOCK_M * BLOCK_M
        end_masked = tl.minimum(tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M, n_queries)
    if start_n + BLOCK_N > n_keys:
        end_masked = n_queries

    k_tile = load_tile(k_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
    v_tile = load_tile(v_head, start_n, HEAD_DIM, BLOCK_N, BLOCK_D, DESCRIPTORS)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start_m in tl.range(start_masked if masked else end_masked, end_masked if masked else n_queries, BLOCK_M):
            q_tile = load_tile(q_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
            do_tile = load_tile(do_head, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS)
            lse_tile, delta = load_lse_delta(
                lse_delta, do_tile, start_m, HEAD_DIM, BLOCK_M, BLOCK_D, PREPROCESSED, DESCRIPTORS
            )
            # Scores are transposed, [keys, queries]: P^T and dS^T then feed the next matmuls from registers.
            scores = tl.dot(k_tile, q_tile.T, input_precision=INPUT_PRECISION)
            p = recompute_p(scores, lse_tile[None, :], softmax_scale, q_tile.dtype == tl.float32)
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)[:, None]
                visible = offs_n < n_keys
                if IS_CAUSAL:
                    visible &= offs_n <= start_m + tl.arange(0, BLOCK_M)[None, :]
                p = tl.where(visible, p, 0.0)
            dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision=INPUT_PRECISION)
            dp = tl.dot(v_tile, do_tile.T, input_precision=INPUT_PRECISION)
            ds = (p * (dp - delta[None, :])).to(q_tile.dtype)
            dk = tl.dot(ds, q_tile, dk, input_precision=INPUT_PRECISION)
    store_tile(dk_head, dk * softmax_scale, start_n, HEAD_DIM, BLOCK_N, BLOCK_D)
    store_tile(dv_head, dv, start_n, HEAD_DIM, BLOCK_N, BLOCK_D)
