"""dK and dV of one tile of keys, summed over the queries."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_row_statistics import recompute_probabilities, statistics
from cs336_systems.attention.triton_tiles import load_tile, store_tile


@triton.jit
def key_gradients(
    tile,
    batch,
    head,
    heads,
    q,
    k,
    v,
    o,
    grad_o,
    row_statistics,
    dk,
    dv,
    q_strides,
    k_strides,
    v_strides,
    o_strides,
    g_strides,
    dk_strides,
    dv_strides,
    n_queries,
    n_padded,
    n_keys,
    scale,
    HEAD_DIM: tl.constexpr,
    OWN: tl.constexpr,
    TAKE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_STATISTICS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dK = dS^T Q / sqrt(d) and dV = P^T dO of one tile of OWN keys; arguments as in backward_kernel."""
    first_key = tile * OWN
    # Queries first_query ... masked_stop see some of the keys, masked_stop ... n_queries see all of them.
    first_query = 0
    masked_stop = 0
    if IS_CAUSAL:
        first_query = first_key // TAKE * TAKE
        masked_stop = tl.minimum(tl.cdiv(first_key + OWN, TAKE) * TAKE, n_queries)
    if first_key + OWN > n_keys:
        masked_stop = n_queries

    key = load_tile(k, k_strides, batch, head, first_key, n_keys, HEAD_DIM, OWN, BLOCK_D, DESCRIPTORS)
    value = load_tile(v, v_strides, batch, head, first_key, n_keys, HEAD_DIM, OWN, BLOCK_D, DESCRIPTORS)
    dk_sum = tl.zeros([OWN, BLOCK_D], tl.float32)
    dv_sum = tl.zeros([OWN, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start in tl.range(first_query if masked else masked_stop, masked_stop if masked else n_queries, TAKE):
            query = load_tile(q, q_strides, batch, head, start, n_queries, HEAD_DIM, TAKE, BLOCK_D, DESCRIPTORS)
            grad = load_tile(grad_o, g_strides, batch, head, start, n_queries, HEAD_DIM, TAKE, BLOCK_D, DESCRIPTORS)
            log_sum, delta = statistics(
                grad,
                o,
                row_statistics,
                o_strides,
                batch,
                head,
                heads,
                start,
                n_queries,
                n_padded,
                HEAD_DIM,
                TAKE,
                BLOCK_D,
                HAS_STATISTICS,
                DESCRIPTORS,
            )
            # Scores stand transposed, [keys, queries]: P^T and dS^T then feed the next products from registers.
            scores = tl.dot(key, query.T, input_precision=PRECISION)
            probabilities = recompute_probabilities(scores, log_sum[None, :], scale, query.dtype == tl.float32)
            if masked:
                keys = first_key + tl.arange(0, OWN)[:, None]
                visible = keys < n_keys
                if IS_CAUSAL:
                    visible &= keys <= start + tl.arange(0, TAKE)[None, :]
                probabilities = tl.where(visible, probabilities, 0.0)
            dv_sum = tl.dot(probabilities.to(grad.dtype), grad, dv_sum, input_precision=PRECISION)
            dp = tl.dot(value, grad.T, input_precision=PRECISION)
            ds = (probabilities * (dp - delta[None, :])).to(query.dtype)
            dk_sum = tl.dot(ds, query, dk_sum, input_precision=PRECISION)
    store_tile(dk, dk_sum * scale, dk_strides, batch, head, first_key, n_keys, HEAD_DIM, OWN, BLOCK_D)
    store_tile(dv, dv_sum, dv_strides, batch, head, first_key, n_keys, HEAD_DIM, OWN, BLOCK_D)
