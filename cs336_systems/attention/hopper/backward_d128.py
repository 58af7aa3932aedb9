"""The backward kernel for head dimensions up to 128: S^T and dP^T one after the other, in the same registers.

dK and dV of 64 keys occupy 128 registers per thread here, which leaves no room for S^T and dP^T together, nor for a
warp that only loads: the warpgroup that computes dQ loads too. It refills a stage when both others have released it.

The two warpgroups that sum dK and dV alternate in computing scores, so that one has the tensor cores to itself while
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
    first_queries,
    locate,
    locate_head,
    masked_steps,
    probabilities,
    query_tile,
    store_gradient,
)
from cs336_systems.attention.hopper.barriers import (
    allocate_barriers,
    give_turn,
    wait_empty,
    wait_for_turn,
    wait_full,
)
from cs336_systems.attention.hopper.copies import async_load
from cs336_systems.attention.hopper.registers import pack, unpack

STAGES = gl.constexpr(2)  # of the rings of queries and output gradients


class Shared(NamedTuple):
    """Shared memory and barriers of a program's partitions."""

    k: Any
    """Keys as [4, 64, 64]: for each warpgroup the first and the second half of the head dimension."""
    v: Any
    """Values, [2, 64, 128]; staging area of the gradients at the end."""
    q: Any
    """Ring of queries, [STAGES, 64, 128]."""
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
    batch: Any
    head: Any
    first_tile: Any
    """The number of query tiles of all heads before."""


@gluon.jit(do_not_specialize=["heads", "n_queries", "n_keys"])
def attention_backward_d128_kernel(
    q,  # descriptor of [batch, heads, n_queries, d] in tiles of [1, 1, 64, 128]
    k,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d] in tiles of [1, 1, 64, 64]
    v,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d] in tiles of [1, 1, 64, 128]
    do,  # descriptor like that of q
    dk,  # descriptor of [batch, heads, n_keys, d] in tiles of [1, 1, 64, 128], out
    dv,  # descriptor like that of dk, out
    lse_delta,  # descriptor of [batch x heads x query tiles x 2 x 64] fp32 in tiles of 64: L in units of log2, then D
    dq,  # pointer, [batch x heads x query tiles x 2, 64 x 64] fp32: dQ / softmax_scale is added to it, see add_dq
    heads,
    n_queries,
    n_keys,
    softmax_scale_log2,  # log2(e) / sqrt(d)
    softmax_scale,  # 1 / sqrt(d)
    HEADS_PER_KV_HEAD: gl.constexpr,  # neighbouring heads of q that share one of k and v
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,  # n_keys is no multiple of 128
    DKDV_REGISTERS: gl.constexpr,  # per thread
):
    """Compute dK, dV and a share of dQ for 128 keys; the grid is (heads in a group, key tiles, groups of heads)."""
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    shared = Shared(
        gl.allocate_shared_memory(q.dtype, [4, 64, 64], TILE),
        gl.allocate_shared_memory(q.dtype, [2, 64, 128], TILE),
        gl.allocate_shared_memory(q.dtype, [STAGES, 64, 128], TILE),
        gl.allocate_shared_memory(q.dtype, [STAGES, 64, 128], TILE),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 64], lse_delta.layout),
        gl.allocate_shared_memory(q.dtype, [2, 64, 64], TILE),
        allocate_barriers(2, 1),
        allocate_barriers(STAGES, 1),
        allocate_barriers(STAGES, 2),
        allocate_barriers(2, 1),
        allocate_barriers(1, 1),
    )
    fence_async_shared()
    inputs = (shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale)
    gl.warp_specialize(
        [
            (load_and_sum_dq, (q, k, v, do, lse_delta, dq, inputs, HEADS_PER_KV_HEAD, IS_CAUSAL)),
            (sum_dkdv, (dk, dv, inputs, 0, IS_CAUSAL, RAGGED)),
            (sum_dkdv, (dk, dv, inputs, 1, IS_CAUSAL, RAGGED)),
        ],
        [4, 4],
        [DKDV_REGISTERS, DKDV_REGISTERS],
    )


@gluon.jit
def load_and_sum_dq(q, k, v, do, lse_delta, dq, inputs, HEADS_PER_KV_HEAD: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Load tiles for all partitions, and sum this program's share of dQ, tile by tile, in two halves of 64 columns."""
    shared, heads, n_queries, _, _, _ = inputs
    DQ: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    work = locate(n_queries, IS_CAUSAL)
    batch_head = locate_head()
    batch, head = batch_head // heads, batch_head % heads
    sources = Sources(q, do, lse_delta, batch, head, batch_head * work.query_tiles)
    load_keys(k, v, batch, head // HEADS_PER_KV_HEAD, work.start_n, shared)
    for j in range(gl.minimum(STAGES, work.steps)):
        load_step(j, sources, shared, work, IS_CAUSAL)
    zero = gl.zeros([64, 64], gl.float32, DQ)
    mbarrier.wait(shared.kv_full.index(0), 0)
    mbarrier.wait(shared.kv_full.index(1), 0)
    for i in range(2 * work.steps):
        j = i // 2
        half = i % 2
        mbarrier.wait(shared.ds_full.index(0), j & 1)
        ds = shared.ds.index(0).permute((1, 0))
        share = warpgroup_mma(ds, shared.k.index(half), zero, use_acc=False, is_async=True)
        mbarrier.wait(shared.ds_full.index(1), j & 1)
        ds = shared.ds.index(1).permute((1, 0))
        share = warpgroup_mma(ds, shared.k.index(2 + half), share, is_async=True)
        share = warpgroup_mma_wait(0, deps=(share,))
        mbarrier.arrive(shared.ds_empty.index(0), pred=half == 1)
        add_dq(dq, share, (sources.first_tile + query_tile(work, j, IS_CAUSAL)) * 2 + half)
        if (half == 1) & (j + STAGES < work.steps):
            wait_full(shared.empty, j, STAGES)  # until both have released the tiles of this step
            load_step(j + STAGES, sources, shared, work, IS_CAUSAL)


@gluon.jit
def load_keys(k, v, batch, head, start_n, shared):
    """Copy the keys and values of both warpgroups."""
    for i in gl.static_range(2):
        full = shared.kv_full.index(i)
        mbarrier.expect(full, 2 * k.block_type.nbytes + v.block_type.nbytes)
        for half in gl.static_range(2):
            columns = [batch, head, start_n + i * 64, half * 64]
            async_load(k, columns, full, shared.k.index(2 * i + half))
        async_load(v, [batch, head, start_n + i * 64, 0], full, shared.v.index(i))


@gluon.jit
def load_step(j, sources, shared, work, IS_CAUSAL: gl.constexpr):
    """Copy the queries, output gradients, L and D of a step; what lies beyond the tensors' ends reads as zero."""
    stage = j % STAGES
    full = shared.full.index(stage)
    tile = query_tile(work, j, IS_CAUSAL)
    rows = [sources.batch, sources.head, tile * 64, 0]
    statistics = (sources.first_tile + tile) * 128
    mbarrier.expect(full, sources.q.block_type.nbytes + sources.do.block_type.nbytes + 2 * 64 * 4)
    async_load(sources.q, rows, full, shared.q.index(stage))
    async_load(sources.lse_delta, [statistics], full, shared.lse.index(stage))
    async_load(sources.do, rows, full, shared.do.index(stage))
    async_load(sources.lse_delta, [statistics + 64], full, shared.delta.index(stage))


@gluon.jit
def sum_dkdv(
    dk,
    dv,
    inputs,  # what the partitions share, and the numbers of the problem
    INDEX: gl.constexpr,  # which of the two warpgroups this is
    IS_CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr,
):
    """Sum dK and dV of 64 keys."""
    shared, heads, n_queries, n_keys, softmax_scale_log2, softmax_scale = inputs
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    D: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    work = locate(n_queries, IS_CAUSAL)
    start_n = work.start_n + INDEX * 64
    first_query = first_queries(start_n, n_keys, S, IS_CAUSAL, RAGGED)
    zero = gl.zeros([64, 64], gl.float32, S)
    dk_sum = gl.zeros([64, 128], gl.float32, D)
    dv_sum = gl.zeros([64, 128], gl.float32, D)
    mbarrier.wait(shared.kv_full.index(INDEX), 0)
    if INDEX == 1:
        give_turn(0)  # the first turn, which nobody else gives
    masked = masked_steps(work, n_keys, IS_CAUSAL, RAGGED)
    for j in range(masked):
        start_m = query_tile(work, j, IS_CAUSAL) * 64
        dk_sum, dv_sum = step(
            *(j, start_m, dk_sum, dv_sum, zero, shared, first_query, softmax_scale_log2),
            *(INDEX, True),
        )
    for j in range(masked, work.steps):
        dk_sum, dv_sum = step(
            *(j, 0, dk_sum, dv_sum, zero, shared, first_query, softmax_scale_log2),
            *(INDEX, False),
        )
    if INDEX == 0:
        wait_for_turn(0)  # the last turn given, which nobody else takes
    store_gradient(dv, dv_sum, shared.v.index(INDEX), heads, start_n)
    store_gradient(dk, dk_sum * softmax_scale, shared.v.index(INDEX), heads, start_n)


@gluon.jit
def step(
    j,
    start_m,  # first query, needed where MASKED
    dk,
    dv,
    zero,
    shared,
    first_query,
    softmax_scale_log2,
    INDEX: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Add the contribution of 64 queries to dK and dV."""
    S: gl.constexpr = zero.type.layout
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    DTYPE: gl.constexpr = shared.q.dtype
    stage = j % STAGES
    # Zero, which the compiler cannot know: it would keep addresses of tiles that never change in registers all the
    # time, and spill others.
    none = j >> 24
    q_tile = shared.q.index(stage)
    do_tile = shared.do.index(stage)
    wait_full(shared.full, j, STAGES)
    lse = shared.lse.index(stage).load(gl.SliceLayout(0, S))  # before the scores, which then need not wait for it
    wait_for_turn(INDEX)
    k_half = shared.k.index(2 * INDEX + none)
    scores = warpgroup_mma(k_half, q_tile.slice(0, 64, 1).permute((1, 0)), zero, use_acc=False, is_async=True)
    k_half = shared.k.index(2 * INDEX + 1 + none)
    scores = warpgroup_mma(k_half, q_tile.slice(64, 64, 1).permute((1, 0)), scores, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    give_turn(1 - INDEX)
    p = probabilities(scores, lse, start_m, first_query, softmax_scale_log2, MASKED)
    v_tile = shared.v.index(INDEX + none)
    dp = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    dp = warpgroup_mma_wait(0, deps=(dp,))
    ds = p * (dp - shared.delta.index(stage).load(gl.SliceLayout(0, S))[None, :])
    dv = warpgroup_mma(unpack(pack(p, DTYPE), DTYPE, OPERAND), do_tile, dv, is_async=True)
    ds_operand = unpack(pack(ds, DTYPE), DTYPE, OPERAND)
    dk = warpgroup_mma(ds_operand, q_tile, dk, is_async=True)
    wait_empty(shared.ds_empty, j, 1)
    shared.ds.index(INDEX).store(gl.convert_layout(ds_operand, S, assert_trivial=True))
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(INDEX))
    dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))
    mbarrier.arrive(shared.empty.index(stage))
    return dk, dv
