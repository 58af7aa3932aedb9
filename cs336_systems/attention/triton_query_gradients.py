"""dQ of one tile of queries, summed over the keys."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_row_statistics import recompute_probabilities, statistics
from cs336_systems.attention.triton_tiles import load_tile, store_tile


@triton.jit
def query_gradients(
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
    dq,
    q_strides,
    k_strides,
    v_strides,
    o_strides,
    g_strides,
    dq_strides,
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
    """dQ = dS K / sqrt(d) of one tile of OWN queries; arguments as in backward_kernel."""
    first_query = tile * OWN
    # Keys 0 ... full are visible to every query of the tile, full ... stop to some of them.
    stop = n_keys
    full = n_keys // TAKE * TAKE
    if IS_CAUSAL:
        stop = tl.minimum(n_keys, first_query + OWN)
        full = tl.minimum(full, (first_query + 1) // TAKE * TAKE)

    query = load_tile(q, q_strides, batch, head, first_query, n_queries, HEAD_DIM, OWN, BLOCK_D, DESCRIPTORS)
    grad = load_tile(grad_o, g_strides, batch, head, first_query, n_queries, HEAD_DIM, OWN, BLOCK_D, DESCRIPTORS)
    log_sum, delta = statistics(
        grad,
        o,
        row_statistics,
        o_strides,
        batch,
        head,
        heads,
        first_query,
        n_queries,
        n_padded,
        HEAD_DIM,
        OWN,
        BLOCK_D,
        HAS_STATISTICS,
        DESCRIPTORS,
    )
    dq_sum = tl.zeros([OWN, BLOCK_D], tl.float32)
    for masked in tl.static_range(2):  # first the tiles that need no mask, then those that do
        for start in tl.range(full if masked else 0, stop if masked else full, TAKE):
            key = load_tile(k, k_strides, batch, head, start, n_keys, HEAD_DIM, TAKE, BLOCK_D, DESCRIPTORS)
            value = load_tile(v, v_strides, batch, head, start, n_keys, HEAD_DIM, TAKE, BLOCK_D, DESCRIPTORS)
            scores = tl.dot(query, key.T, input_precision=PRECISION)
            probabilities = recompute_probabilities(scores, log_sum[:, None], scale, query.dtype == tl.float32)
            if masked:
                keys = start + tl.arange(0, TAKE)[None, :]
                visible = keys < n_keys
                if IS_CAUSAL:
                    visible &= keys <= first_query + tl.arange(0, OWN)[:, None]
                probabilities = tl.where(visible, probabilities, 0.0)
            dp = tl.dot(grad, value.T, input_precision=PRECISION)
            ds = (probabilities * (dp - delta[:, None])).to(key.dtype)
            dq_sum = tl.dot(ds, key, dq_sum, input_precision=PRECISION)
    store_tile(dq, dq_sum * scale, dq_strides, batch, head, first_query, n_queries, HEAD_DIM, OWN, BLOCK_D)
