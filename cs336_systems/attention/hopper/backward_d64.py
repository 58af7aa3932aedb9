"""The backward kernel for head dimensions up to 64: the next scores are computed at the same time as dV and dK.

The keys and values of a warpgroup fit into its registers, as operands of S^T and dP^T. A separate warp loads. At the
start of a step the scores are ready: the previous step computed them. So the last step computes unneeded scores, from
an extra tile that the loader adds.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cs336_systems.attention.hopper.backward_common import (
    add_dq,
    await_turn,
    end_turn,
    first_queries,
    first_query_tile,
    locate,
    locate_document,
    locate_head,
    probabilities,
    query_tile,
    steps_of_first_loop,
    store_gradient,
)
from cs336_systems.attention.hopper.barriers import allocate_barriers, sync_warpgroup, wait_empty, wait_full
from cs336_systems.attention.hopper.copies import async_load
from cs336_systems.attention.hopper.documents import coordinates, sequences
from cs336_systems.attention.hopper.registers import pack, unpack
from cs336_systems.attention.hopper.softcap import through_softcap


class Shared(NamedTuple):
    """Shared memory and barriers of a program's partitions."""

    k: Any
    """Keys of each warpgroup, [2, 64, 64]."""
    v: Any
    """Values, likewise; staging area of the gradients at the end."""
    q: Any
    """Ring of queries, [stages, 64, 64]."""
    do: Any
    """Ring of output gradients, likewise."""
    lse: Any
    """Ring of L, [stages, 64]; comes with the queries."""
    delta: Any
    """Ring of D, [stages, 64]; comes with the output gradients."""
    ds: Any
    """Ring of dS^T, [2 x stages, 64, 64]: of both warpgroups."""
    kv_full: Any
    q_full: Any
    q_empty: Any
    do_full: Any
    do_empty: Any
    ds_full: Any
    ds_empty: Any


@gluon.jit(do_not_specialize=["heads", "n_queries", "n_keys", "window_left", "documents"])
def attention_backward_d64_kernel(
    q,  # descriptor of [batch, heads, n_queries, d] in tiles of [1, 1, 64, 64]
    k,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d], likewise
    v,  # descriptor like k's
    do,  # descriptor like q's
    dk,  # descriptor of [batch, heads, n_keys, d], likewise, out
    dv,  # descriptor like dk's, out
    lse_delta,  # descriptor of [batch x heads x query tiles x 2 x 64] fp32 in tiles of 64: L in units of log2, then D
    dq,  # pointer, [batch x heads x query tiles, 64 x 64] fp32: dQ / softmax_scale is added to it, see add_dq
    added,  # pointer, [batch x heads x query tiles] int32: programs that have added to dQ, 0; None for any order
    cu_seqlens_q,  # pointer, [documents + 1] int32; None without packed documents
    cu_seqlens_k,
    heads,
    n_queries,
    n_keys,
    softmax_scale_log2,  # log2(e) / sqrt(d); with softcap 1 / (softcap sqrt(d))
    softmax_scale,  # 1 / sqrt(d)
    window_left,  # with a causal mask only; None for none
    documents,
    HEADS_PER_KV_HEAD: gl.constexpr,  # neighbouring heads of q that share one of k and v
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,  # n_keys is no multiple of 128
    SOFTCAP_LOG2: gl.constexpr,  # softcap log2(e); None for none
    DKDV_REGISTERS: gl.constexpr,  # per thread
    LOADER_REGISTERS: gl.constexpr,
):
    """Compute dK, dV and a share of dQ for 128 keys; the grid is (heads in a group, key tiles, groups of heads).

    Packed documents are a batch of one, with descriptors as documents.py describes.
    """
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    DETERMINISTIC: gl.constexpr = added is not None
    STAGES: gl.constexpr = 4 if DETERMINISTIC else 2  # more, so that others work on while the one for dQ waits
    shared = Shared(
        gl.allocate_shared_memory(q.dtype, [2, 64, 64], TILE),
        gl.allocate_shared_memory(q.dtype, [2, 64, 64], TILE),
        gl.allocate_shared_memory(q.dtype, [STAGES, 64, 64], TILE),
        gl.allocate_shared_memory(q.dtype, [STAGES, 64, 64], TILE),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        gl.allocate_shared_memory(q.dtype, [2 * STAGES, 64, 64], TILE),
        allocate_barriers(2, 1),
        allocate_barriers(STAGES, 1),
        allocate_barriers(STAGES, 2),
        allocate_barriers(STAGES, 1),
        allocate_barriers(STAGES, 2),
        allocate_barriers(2 * STAGES, 1),
        allocate_barriers(STAGES, 1),
    )
    fence_async_shared()
    if documents is None:
        place: gl.constexpr = None
    else:
        place, n_queries, n_keys = locate_document(cu_seqlens_q, cu_seqlens_k, documents, n_queries, n_keys)
        if place.start >= n_keys:  # an empty tile
            return
    inputs = (shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale)
    gl.warp_specialize(
        [
            (sum_dq, (dq, added, inputs, window_left, place, IS_CAUSAL, RAGGED)),
            (sum_dkdv, (dk, dv, inputs, window_left, place, 0, IS_CAUSAL, RAGGED, SOFTCAP_LOG2, DETERMINISTIC)),
            (sum_dkdv, (dk, dv, inputs, window_left, place, 1, IS_CAUSAL, RAGGED, SOFTCAP_LOG2, DETERMINISTIC)),
            (
                loader,
                (
                    q,
                    k,
                    v,
                    do,
                    lse_delta,
                    inputs,
                    window_left,
                    place,
                    HEADS_PER_KV_HEAD,
                    IS_CAUSAL,
                    RAGGED,
                    DETERMINISTIC,
                ),
            ),
        ],
        [4, 4, 1],
        [DKDV_REGISTERS, DKDV_REGISTERS, LOADER_REGISTERS],
    )


@gluon.jit
def loader(
    q,
    k,
    v,
    do,
    lse_delta,
    inputs,  # shared state of the partitions, and the problem's sizes
    window_left,
    place,
    HEADS_PER_KV_HEAD: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,
    DETERMINISTIC: gl.constexpr,
):
    """Copy keys and values, then queries and output gradients; elements beyond the tensors' ends read as zero."""
    shared, heads, n_queries, n_keys, _, _ = inputs
    STAGES: gl.constexpr = shared.q_full.shape[0]
    work = locate(n_queries, n_keys, window_left, place, IS_CAUSAL, RAGGED)
    batch_head = locate_head()
    head = batch_head % heads
    queries, keys = sequences(batch_head // heads, n_queries, n_keys, place)
    for i in gl.static_range(2):
        mbarrier.expect(shared.kv_full.index(i), k.block_type.nbytes + v.block_type.nbytes)
        rows = coordinates(k, keys, head // HEADS_PER_KV_HEAD, work.start_n + i * 64, 0)
        async_load(k, rows, shared.kv_full.index(i), shared.k.index(i))
        async_load(v, rows, shared.kv_full.index(i), shared.v.index(i))
    for j in range(work.steps):
        stage = j % STAGES
        tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
        statistics = (first_query_tile(work, place) + tile) * 128
        rows = coordinates(q, queries, head, tile * 64, 0)
        wait_empty(shared.q_empty, j)
        full = shared.q_full.index(stage)
        mbarrier.expect(full, q.block_type.nbytes + 64 * 4)
        async_load(lse_delta, [statistics], full, shared.lse.index(stage))
        async_load(q, rows, full, shared.q.index(stage))
        wait_empty(shared.do_empty, j)
        full = shared.do_full.index(stage)
        mbarrier.expect(full, do.block_type.nbytes + 64 * 4)
        async_load(lse_delta, [statistics + 64], full, shared.delta.index(stage))
        async_load(do, rows, full, shared.do.index(stage))
    # Any queries, for the unneeded scores.
    wait_empty(shared.q_empty, work.steps)
    full = shared.q_full.index(work.steps % STAGES)
    mbarrier.expect(full, q.block_type.nbytes)
    async_load(q, coordinates(q, queries, head, 0, 0), full, shared.q.index(work.steps % STAGES))


@gluon.jit
def sum_dkdv(
    dk,
    dv,
    inputs,  # shared state of the partitions, and the problem's sizes
    window_left,
    place,
    INDEX: gl.constexpr,  # index of this warpgroup, of two
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
    DETERMINISTIC: gl.constexpr,
):
    """Sum dK and dV of 64 keys."""
    shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale = inputs
    # Layout of all matmuls here: a row has 64 queries or 64 elements of a head.
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    work = locate(n_queries, n_keys, window_left, place, IS_CAUSAL, RAGGED)
    start_n = work.start_n + INDEX * 64
    first_query = first_queries(start_n, n_keys, S, IS_CAUSAL, RAGGED)
    zero = gl.zeros([64, 64], gl.float32, S)
    dk_sum = gl.zeros([64, 64], gl.float32, S)
    dv_sum = gl.zeros([64, 64], gl.float32, S)
    mbarrier.wait(shared.kv_full.index(INDEX), 0)
    k_tile = shared.k.index(INDEX).load(gl.DotOperandLayout(0, S, 2))
    v_tile = shared.v.index(INDEX).load(gl.DotOperandLayout(0, S, 2))
    mbarrier.wait(shared.q_full.index(0), 0)
    scores = warpgroup_mma(k_tile, shared.q.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    first_loop = steps_of_first_loop(work, n_keys, window_left, IS_CAUSAL, RAGGED, DETERMINISTIC)
    for j in range(first_loop):
        start_m = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC) * 64
        scores, dk_sum, dv_sum = step(
            *(j, start_m, scores, dk_sum, dv_sum, k_tile, v_tile, zero, shared, first_query),
            *(softmax_scale_log2, window_left, INDEX, SOFTCAP_LOG2, not DETERMINISTIC),
        )
    for j in range(first_loop, work.steps):
        start_m = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC) * 64
        scores, dk_sum, dv_sum = step(
            *(j, start_m, scores, dk_sum, dv_sum, k_tile, v_tile, zero, shared, first_query),
            *(softmax_scale_log2, window_left, INDEX, SOFTCAP_LOG2, DETERMINISTIC),
        )
    store_gradient(dv, (dv_sum,), 1.0, (shared.v.index(INDEX),), heads, n_keys, start_n, place)
    store_gradient(dk, (dk_sum,), softmax_scale, (shared.v.index(INDEX),), heads, n_keys, start_n, place)


@gluon.jit
def step(
    j,
    start_m,  # first query, needed where MASKED
    scores,  # S^T of this step
    dk,
    dv,
    k_tile,
    v_tile,
    zero,
    shared,
    first_query,
    softmax_scale_log2,
    window_left,
    INDEX: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Add the contribution of 64 queries to dK and dV, and compute the next step's scores."""
    S: gl.constexpr = zero.type.layout
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    DTYPE: gl.constexpr = shared.q.dtype
    STAGES: gl.constexpr = shared.q_full.shape[0]
    stage = j % STAGES
    do_tile = shared.do.index(stage)
    wait_full(shared.do_full, j)
    dp = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    lse = shared.lse.index(stage).load(gl.SliceLayout(0, S))
    p = probabilities(scores, lse, start_m, first_query, softmax_scale_log2, window_left, SOFTCAP_LOG2, MASKED)
    dv = warpgroup_mma(unpack(pack(p, DTYPE), DTYPE, OPERAND), do_tile, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp,))
    ds = p * (dp - shared.delta.index(stage).load(gl.SliceLayout(0, S))[None, :])
    if SOFTCAP_LOG2 is not None:
        ds = through_softcap(ds, p, shared.lse.index(stage).load(gl.SliceLayout(0, S)), SOFTCAP_LOG2)
    ds_operand = unpack(pack(ds, DTYPE), DTYPE, OPERAND)
    dk = warpgroup_mma(ds_operand, shared.q.index(stage), dk, is_async=True)
    wait_full(shared.q_full, j + 1)
    next_q = shared.q.index((j + 1) % STAGES)
    scores = warpgroup_mma(k_tile, next_q.permute((1, 0)), zero, use_acc=False, is_async=True)
    wait_empty(shared.ds_empty, j)
    shared.ds.index(stage * 2 + INDEX).store(gl.convert_layout(ds_operand, S, assert_trivial=True))
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(stage * 2 + INDEX))
    dv = warpgroup_mma_wait(2, deps=(dv,))
    mbarrier.arrive(shared.do_empty.index(stage))
    dk = warpgroup_mma_wait(1, deps=(dk,))
    mbarrier.arrive(shared.q_empty.index(stage))
    scores = warpgroup_mma_wait(0, deps=(scores,))
    return scores, dk, dv


@gluon.jit
def sum_dq(dq, added, inputs, window_left, place, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr):
    """Sum this program's share of dQ, tile by tile."""
    DETERMINISTIC: gl.constexpr = added is not None
    shared, _, n_queries, n_keys, _, _ = inputs
    STAGES: gl.constexpr = shared.ds_empty.shape[0]
    DQ: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    work = locate(n_queries, n_keys, window_left, place, IS_CAUSAL, RAGGED)
    first_tile = first_query_tile(work, place)
    zero = gl.zeros([64, 64], gl.float32, DQ)
    mbarrier.wait(shared.kv_full.index(0), 0)
    mbarrier.wait(shared.kv_full.index(1), 0)
    for j in range(work.steps):
        stage = j % STAGES
        phase = (j // STAGES) & 1
        if DETERMINISTIC:
            tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
            await_turn(added, first_tile, tile, j == 0, window_left, place)
        mbarrier.wait(shared.ds_full.index(stage * 2), phase)
        ds = shared.ds.index(stage * 2).permute((1, 0))
        share = warpgroup_mma(ds, shared.k.index(0), zero, use_acc=False, is_async=True)
        mbarrier.wait(shared.ds_full.index(stage * 2 + 1), phase)
        ds = shared.ds.index(stage * 2 + 1).permute((1, 0))
        share = warpgroup_mma(ds, shared.k.index(1), share, is_async=True)
        share = warpgroup_mma_wait(0, deps=(share,))
        mbarrier.arrive(shared.ds_empty.index(stage))
        if DETERMINISTIC:
            sync_warpgroup()
        tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
        add_dq(dq, share, first_tile + tile, 64)
        if DETERMINISTIC:
            end_turn(added, first_tile, tile)
