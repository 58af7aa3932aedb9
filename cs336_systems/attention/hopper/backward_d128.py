"""The backward kernel for head dimensions above 64: S^T and dP^T one after the other in the same registers.

dK and dV of 64 keys occupy up to 128 registers per thread here, which leaves no room for S^T and dP^T together, nor for
a warp that only loads: the warpgroup that computes dQ loads too. It refills a stage when both others have released it.
Narrower heads leave room for values, and for keys, as register operands.

The two warpgroups that sum dK and dV alternate in computing scores, so that one uses the tensor cores exclusively while
the other computes exponentials.
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
from cs336_systems.attention.hopper.barriers import (
    allocate_barriers,
    give_turn,
    sync_warpgroup,
    wait_empty,
    wait_for_turn,
    wait_full,
)
from cs336_systems.attention.hopper.copies import async_load
from cs336_systems.attention.hopper.documents import sequences
from cs336_systems.attention.hopper.head_tiles import (
    add_product,
    allocate_tiles,
    box_columns,
    load_matrix,
    load_operand,
    matrix_of,
    multiply_transposed,
    sum_layout,
    zero_sums,
)
from cs336_systems.attention.hopper.registers import pack, unpack
from cs336_systems.attention.hopper.softcap import through_softcap

STAGES = gl.constexpr(2)  # of the rings of queries and output gradients


class Shared(NamedTuple):
    """Shared memory and barriers of a program's partitions."""

    k: Any
    """Keys of each warpgroup, 2 x [64, BLOCK_D] in tiles of at most 64 columns."""
    v: Any
    """Values, likewise but in tiles of the head dimension; staging area of the gradients at the end."""
    q: Any
    """Ring of queries, STAGES x [64, BLOCK_D]."""
    do: Any
    """Ring of output gradients, likewise."""
    lse: Any
    """Ring of L, [STAGES, 64]."""
    delta: Any
    """Ring of D, [STAGES, 64]."""
    ds: Any
    """dS^T of each warpgroup, [2, 64, 64]."""
    kv_full: Any
    full: Any
    empty: Any
    ds_full: Any
    ds_empty: Any


class Sources(NamedTuple):
    """Descriptors of a program's inputs, and the head that it loads from."""

    q: Any
    do: Any
    lse_delta: Any
    sequence: Any
    """See documents.py, sequences."""
    head: Any
    first_tile: Any
    """The number of query tiles of all heads before."""


@gluon.jit(do_not_specialize=["heads", "n_queries", "n_keys", "window_left", "documents"])
def attention_backward_d128_kernel(
    q,  # descriptor of [batch, heads, n_queries, d] in boxes of [1, 1, 64, columns], see box_columns
    k,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d], likewise, but in boxes of at most 64 columns
    v,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d] like q's
    do,  # descriptor like q's
    dk,  # descriptor of [batch, heads, n_keys, d] like q's, out
    dv,  # descriptor like dk's, out
    lse_delta,  # descriptor of [batch x heads x query tiles x 2 x 64] fp32 in tiles of 64: L in units of log2, then D
    dq,  # pointer, [batch x heads x query tiles, 64 x BLOCK_D] fp32: dQ / softmax_scale is added to it, see add_dq
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
    BLOCK_D: gl.constexpr,  # d, padded to 80, 96 or 128
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,  # n_keys is no multiple of 128
    SOFTCAP_LOG2: gl.constexpr,  # softcap log2(e); None for none
    DKDV_REGISTERS: gl.constexpr,  # per thread
):
    """Compute dK, dV and a share of dQ for 128 keys; the grid is (heads in a group, key tiles, groups of heads).

    Packed documents are a batch of one, with descriptors as documents.py describes.
    """
    K_COLUMNS: gl.constexpr = 64 if BLOCK_D == 128 else BLOCK_D
    shared = Shared(
        allocate_tiles(q.dtype, 2 * BLOCK_D // K_COLUMNS, 64, K_COLUMNS),
        allocate_tiles(q.dtype, 2, 64, BLOCK_D),
        allocate_tiles(q.dtype, STAGES, 64, BLOCK_D),
        allocate_tiles(q.dtype, STAGES, 64, BLOCK_D),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        allocate_tiles(q.dtype, 2, 64, 64),
        allocate_barriers(2, 1),
        allocate_barriers(STAGES, 1),
        allocate_barriers(STAGES, 2),
        allocate_barriers(2, 1),
        allocate_barriers(1, 1),
    )
    fence_async_shared()
    if documents is None:
        place: gl.constexpr = None
    else:
        place, n_queries, n_keys = locate_document(cu_seqlens_q, cu_seqlens_k, documents, n_queries, n_keys)
        if place.start >= n_keys:  # an empty tile
            return
    inputs = (shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale)
    DETERMINISTIC: gl.constexpr = added is not None
    gl.warp_specialize(
        [
            (
                load_and_sum_dq,
                (
                    q,
                    k,
                    v,
                    do,
                    lse_delta,
                    dq,
                    added,
                    inputs,
                    window_left,
                    place,
                    HEADS_PER_KV_HEAD,
                    BLOCK_D,
                    IS_CAUSAL,
                    RAGGED,
                ),
            ),
            (
                sum_dkdv,
                (dk, dv, inputs, window_left, place, 0, BLOCK_D, IS_CAUSAL, RAGGED, SOFTCAP_LOG2, DETERMINISTIC),
            ),
            (
                sum_dkdv,
                (dk, dv, inputs, window_left, place, 1, BLOCK_D, IS_CAUSAL, RAGGED, SOFTCAP_LOG2, DETERMINISTIC),
            ),
        ],
        [4, 4],
        [DKDV_REGISTERS, DKDV_REGISTERS],
    )


@gluon.jit
def load_and_sum_dq(
    q,
    k,
    v,
    do,
    lse_delta,
    dq,
    added,
    inputs,
    window_left,
    place,
    HEADS_PER_KV_HEAD: gl.constexpr,
    BLOCK_D: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,
):
    """Load tiles for all partitions, and sum this program's share of dQ, tile by tile, in two parts."""
    DETERMINISTIC: gl.constexpr = added is not None
    shared, heads, n_queries, n_keys, _, _ = inputs
    work = locate(n_queries, n_keys, window_left, place, IS_CAUSAL, RAGGED)
    batch_head = locate_head()
    head = batch_head % heads
    queries, keys = sequences(batch_head // heads, n_queries, n_keys, place)
    sources = Sources(q, do, lse_delta, queries, head, first_query_tile(work, place))
    load_keys(k, v, keys, head // HEADS_PER_KV_HEAD, work.start_n, shared, BLOCK_D)
    for j in range(gl.minimum(STAGES, work.steps)):
        load_step(j, sources, shared, work, window_left, BLOCK_D, IS_CAUSAL, DETERMINISTIC)
    mbarrier.wait(shared.kv_full.index(0), 0)
    mbarrier.wait(shared.kv_full.index(1), 0)
    if BLOCK_D == 128:
        zero = zero_sums(64)[0]
        for i in range(2 * work.steps):
            j = i // 2
            half = i % 2
            if DETERMINISTIC:  # noqa: SIM102 - a constant and a number
                if half == 0:
                    tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
                    await_turn(added, sources.first_tile, tile, j == 0, window_left, place)
            share = share_of_dq(shared, j, half, zero, BLOCK_D)
            mbarrier.arrive(shared.ds_empty.index(0), pred=half == 1)
            if DETERMINISTIC:
                sync_warpgroup()
            tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
            add_dq(dq, share, (sources.first_tile + tile) * 2 + half, 64)
            if (half == 1) & (j + STAGES < work.steps):
                wait_full(shared.empty, j)  # until both have released the tiles of this step
                load_step(j + STAGES, sources, shared, work, window_left, BLOCK_D, IS_CAUSAL, DETERMINISTIC)
            if DETERMINISTIC:  # noqa: SIM102
                if half == 1:
                    end_turn(added, sources.first_tile, tile)
    else:
        COLUMNS: gl.constexpr = box_columns(BLOCK_D)
        wide, narrow = zero_sums(BLOCK_D)
        for j in range(work.steps):
            tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
            first_part = (sources.first_tile + tile) * (BLOCK_D // COLUMNS)
            if DETERMINISTIC:
                await_turn(added, sources.first_tile, tile, j == 0, window_left, place)
            share = share_of_dq(shared, j, 0, wide, BLOCK_D)
            if DETERMINISTIC:
                sync_warpgroup()
            add_dq(dq, share, first_part, COLUMNS)
            rest = share_of_dq(shared, j, 1, narrow, BLOCK_D)
            mbarrier.arrive(shared.ds_empty.index(0))
            add_dq(dq, rest, first_part + 64 // COLUMNS, COLUMNS)
            if j + STAGES < work.steps:
                wait_full(shared.empty, j)
                load_step(j + STAGES, sources, shared, work, window_left, BLOCK_D, IS_CAUSAL, DETERMINISTIC)
            if DETERMINISTIC:
                end_turn(added, sources.first_tile, tile)


@gluon.jit
def share_of_dq(shared, j, part, zero, BLOCK_D: gl.constexpr):
    """Multiply dS of step j with one of two parts of the keys."""
    mbarrier.wait(shared.ds_full.index(0), j & 1)
    ds = shared.ds[0].index(0).permute((1, 0))
    share = warpgroup_mma(ds, part_of_keys(shared, 0, part, BLOCK_D), zero, use_acc=False, is_async=True)
    mbarrier.wait(shared.ds_full.index(1), j & 1)
    ds = shared.ds[0].index(1).permute((1, 0))
    share = warpgroup_mma(ds, part_of_keys(shared, 1, part, BLOCK_D), share, is_async=True)
    return warpgroup_mma_wait(0, deps=(share,))


@gluon.jit
def part_of_keys(shared, INDEX: gl.constexpr, part, BLOCK_D: gl.constexpr):
    """One of two parts of the keys of a warpgroup; for d = 128 it need not be known at compile time."""
    if BLOCK_D == 128:
        return shared.k[0].index(2 * INDEX + part)
    else:
        return shared.k[part].index(INDEX)


@gluon.jit
def keys_of(shared, INDEX: gl.constexpr, BLOCK_D: gl.constexpr, none=0):
    """The keys of a warpgroup in two parts; none is zero, see step."""
    if BLOCK_D == 128:
        return (shared.k[0].index(2 * INDEX + none), shared.k[0].index(2 * INDEX + 1 + none))
    else:
        return matrix_of(shared.k, INDEX + none)


@gluon.jit
def load_keys(k, v, sequence, head, start_n, shared, BLOCK_D: gl.constexpr):
    """Copy the keys and values of both warpgroups."""
    for i in gl.static_range(2):
        full = shared.kv_full.index(i)
        mbarrier.expect(full, 2 * 64 * BLOCK_D * 2)
        row = start_n + i * 64
        load_matrix(k, sequence, head, row, full, keys_of(shared, i, BLOCK_D))
        load_matrix(v, sequence, head, row, full, matrix_of(shared.v, i))


@gluon.jit
def load_step(
    j,
    sources,
    shared,
    work,
    window_left,
    BLOCK_D: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
    DETERMINISTIC: gl.constexpr,
):
    """Copy the queries, output gradients, L and D of a step; what lies beyond the tensors' ends reads as zero."""
    stage = j % STAGES
    full = shared.full.index(stage)
    tile = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC)
    sequence, head, start_m = sources.sequence, sources.head, tile * 64
    statistics = (sources.first_tile + tile) * 128
    mbarrier.expect(full, 2 * 64 * BLOCK_D * 2 + 2 * 64 * 4)
    load_matrix(sources.q, sequence, head, start_m, full, matrix_of(shared.q, stage))
    async_load(sources.lse_delta, [statistics], full, shared.lse.index(stage))
    load_matrix(sources.do, sequence, head, start_m, full, matrix_of(shared.do, stage))
    async_load(sources.lse_delta, [statistics + 64], full, shared.delta.index(stage))


@gluon.jit
def sum_dkdv(
    dk,
    dv,
    inputs,  # shared state of the partitions, and the problem's sizes
    window_left,
    place,
    INDEX: gl.constexpr,  # index of this warpgroup, of two
    BLOCK_D: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
    DETERMINISTIC: gl.constexpr,
):
    """Sum dK and dV of 64 keys."""
    shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale = inputs
    S: gl.constexpr = sum_layout(64)
    work = locate(n_queries, n_keys, window_left, place, IS_CAUSAL, RAGGED)
    start_n = work.start_n + INDEX * 64
    first_query = first_queries(start_n, n_keys, S, IS_CAUSAL, RAGGED)
    zero = gl.zeros([64, 64], gl.float32, S)
    dk_sum = zero_sums(BLOCK_D)
    dv_sum = zero_sums(BLOCK_D)
    mbarrier.wait(shared.kv_full.index(INDEX), 0)
    # Operands that fit into registers: values up to d = 96, keys up to d = 80. Others are in shared memory, see step.
    k_tile = load_operand(shared.k, INDEX, S) if BLOCK_D <= 80 else ()
    v_tile = load_operand(shared.v, INDEX, S) if BLOCK_D <= 96 else ()
    if INDEX == 1:
        give_turn(0)  # the first turn, which nobody else gives
    first_loop = steps_of_first_loop(work, n_keys, window_left, IS_CAUSAL, RAGGED, DETERMINISTIC)
    for j in range(first_loop):
        start_m = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC) * 64
        dk_sum, dv_sum = step(
            *(j, start_m, dk_sum, dv_sum, k_tile, v_tile, zero, shared, first_query),
            *(softmax_scale_log2, window_left, INDEX, BLOCK_D, SOFTCAP_LOG2, not DETERMINISTIC),
        )
    for j in range(first_loop, work.steps):
        start_m = query_tile(work, j, window_left, IS_CAUSAL, DETERMINISTIC) * 64
        dk_sum, dv_sum = step(
            *(j, start_m, dk_sum, dv_sum, k_tile, v_tile, zero, shared, first_query),
            *(softmax_scale_log2, window_left, INDEX, BLOCK_D, SOFTCAP_LOG2, DETERMINISTIC),
        )
    if INDEX == 0:
        wait_for_turn(0)  # the last turn given, which no other warpgroup takes
    store_gradient(dv, dv_sum, 1.0, matrix_of(shared.v, INDEX), heads, n_keys, start_n, place)
    store_gradient(dk, dk_sum, softmax_scale, matrix_of(shared.v, INDEX), heads, n_keys, start_n, place)


@gluon.jit
def step(
    j,
    start_m,  # first query, needed where MASKED
    dk,
    dv,
    k_tile,  # register operand, if it fits
    v_tile,  # register operand, if it fits
    zero,
    shared,
    first_query,
    softmax_scale_log2,
    window_left,
    INDEX: gl.constexpr,
    BLOCK_D: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Add the contribution of 64 queries to dK and dV."""
    S: gl.constexpr = zero.type.layout
    DTYPE: gl.constexpr = shared.q[0].dtype
    stage = j % STAGES
    # Zero, unknown to the compiler: otherwise it would keep the addresses of constant tiles in registers all the time,
    # and spill others.
    none = j >> 24
    q_tile = matrix_of(shared.q, stage)
    do_tile = matrix_of(shared.do, stage)
    wait_full(shared.full, j)
    lse = shared.lse.index(stage).load(
        gl.SliceLayout(0, S)
    )  # read before the scores are computed, which then need not wait for it
    wait_for_turn(INDEX)
    if BLOCK_D > 80:
        k_tile = keys_of(shared, INDEX, BLOCK_D, none)
    scores = multiply_transposed(k_tile, q_tile, zero)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    give_turn(1 - INDEX)
    p = probabilities(scores, lse, start_m, first_query, softmax_scale_log2, window_left, SOFTCAP_LOG2, MASKED)
    if BLOCK_D > 96:
        v_tile = matrix_of(shared.v, INDEX + none)
    dp = multiply_transposed(v_tile, do_tile, zero)
    dp = warpgroup_mma_wait(0, deps=(dp,))
    ds = p * (dp - shared.delta.index(stage).load(gl.SliceLayout(0, S))[None, :])
    if SOFTCAP_LOG2 is not None:
        ds = through_softcap(ds, p, shared.lse.index(stage).load(gl.SliceLayout(0, S)), SOFTCAP_LOG2)
    dv = add_product(dv, pack(p, DTYPE), do_tile)
    packed_ds = pack(ds, DTYPE)
    dk = add_product(dk, packed_ds, q_tile)
    wait_empty(shared.ds_empty, j)
    shared.ds[0].index(INDEX).store(unpack(packed_ds, DTYPE, S))
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(INDEX))
    dk, dv = wait_for_all(dk, dv)
    mbarrier.arrive(shared.empty.index(stage))
    return dk, dv


@gluon.jit
def wait_for_all(dk, dv):
    """Wait until dK and dV of all matmuls are ready."""
    if len(dk) == 1:
        dv_sum, dk_sum = warpgroup_mma_wait(0, deps=(dv[0], dk[0]))
        return (dk_sum,), (dv_sum,)
    else:
        dv_wide, dv_narrow, dk_wide, dk_narrow = warpgroup_mma_wait(0, deps=(dv[0], dv[1], dk[0], dk[1]))
        return (dk_wide, dk_narrow), (dv_wide, dv_narrow)
