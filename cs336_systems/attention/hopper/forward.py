"""FlashAttention's forward pass for Hopper in Gluon, with one loading warp and one to three consumer warpgroups.

A program owns CONSUMERS x 64 queries and processes its keys from the last visible tile to the first. One warp, the
loader, copies tiles of keys and values into a ring of STAGES stages with TMA. Each consumer is a warpgroup that owns 64
queries. Per step it issues the matmul for the next scores and the matmul of the last probabilities with their values,
and computes the softmax while the second matmul runs. Consumers alternate in issuing matmuls: while one computes its
softmax, the tensor cores work for another.

Step t of the ring carries key tile t and value tile t - 1 under one pair of barriers, since they are used together.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from cs336_systems.attention.hopper.barriers import allocate_barriers, give_turn, wait_empty, wait_for_turn, wait_full
from cs336_systems.attention.hopper.copies import store_wait
from cs336_systems.attention.hopper.documents import Place, locate_in_documents, sequences
from cs336_systems.attention.hopper.head_tiles import (
    add_product,
    allocate_tiles,
    load_matrix,
    matrix_of,
    multiply_transposed,
    scale_rows,
    store_matrix,
    sum_layout,
    wait_for_sums,
    wide_columns,
    zero_sums,
)
from cs336_systems.attention.hopper.registers import pack
from cs336_systems.attention.hopper.softcap import cap_scores

STAGES = gl.constexpr(2)  # of the ring
BLOCK_N = gl.constexpr(128)  # keys per step
LN_2 = gl.constexpr(0.6931471805599453)
LOG2_E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-3.4028234e38)  # finite, so that no infinities are subtracted where scores are -inf


class Shared(NamedTuple):
    """Shared memory and barriers of a program's partitions."""

    q: Any
    """Queries, CONSUMERS x [64, BLOCK_D] by parts; staging area of the output at the end."""
    k: Any
    """Ring of keys, STAGES x [BLOCK_N, BLOCK_D], likewise."""
    v: Any
    """Ring of values, likewise."""
    q_full: Any
    """Barrier of each consumer: its queries have been written."""
    full: Any
    """Barrier of each stage: its tiles have been written."""
    empty: Any
    """Barrier of each stage: all consumers have read its tiles."""


@gluon.jit(do_not_specialize=["heads", "n_queries", "n_keys", "window_left", "documents"])
def attention_forward_kernel(
    q,  # descriptor of [batch, heads, n_queries, d] in boxes of [1, 1, 64, columns], see box_columns
    k,  # descriptor of [batch, heads / HEADS_PER_KV_HEAD, n_keys, d] in boxes of [1, 1, BLOCK_N, columns]
    v,  # descriptor like k's
    o,  # descriptor like q's, out
    lse,  # pointer, [batch, heads, n_queries] fp32, out: log-sum-exp of the scaled scores, natural logarithm
    sinks,  # pointer, [heads]; None for none, as window_left
    cu_seqlens_q,  # pointer, [documents + 1] int32; None without packed documents
    cu_seqlens_k,
    heads,
    n_queries,
    n_keys,
    softmax_scale_log2,  # log2(e) / sqrt(d); with softcap 1 / (softcap sqrt(d))
    window_left,  # with a causal mask only
    documents,
    HEADS_PER_KV_HEAD: gl.constexpr,  # neighbouring heads of q that share one of k and v
    BLOCK_D: gl.constexpr,  # d, padded to 64, 80, 96 or 128
    CONSUMERS: gl.constexpr,  # warpgroups of 64 queries
    IS_CAUSAL: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,  # softcap log2(e); None for none
    CONSUMER_REGISTERS: gl.constexpr,  # per thread
    LOADER_REGISTERS: gl.constexpr,
):
    """Compute attention of one tile of queries; the grid is (heads in a group, query tiles, groups of heads).

    Packed documents are a batch of one, with descriptors as documents.py describes.
    """
    shared = Shared(
        allocate_tiles(q.dtype, CONSUMERS, 64, BLOCK_D),
        allocate_tiles(q.dtype, STAGES, BLOCK_N, BLOCK_D),
        allocate_tiles(q.dtype, STAGES, BLOCK_N, BLOCK_D),
        allocate_barriers(CONSUMERS, 1),
        allocate_barriers(STAGES, 1),
        allocate_barriers(STAGES, CONSUMERS),
    )
    fence_async_shared()
    if documents is None:
        place: gl.constexpr = None
    else:
        tile = gl.num_programs(1) - 1 - gl.program_id(1)
        start_m, _, first_q, of_document, first_k, n_keys = locate_in_documents(
            tile, cu_seqlens_q, cu_seqlens_k, documents, n_queries, CONSUMERS * 64
        )
        if start_m >= of_document:  # an empty tile
            return
        head = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        place = Place(start_m, first_q, first_k, head.to(gl.int64) * n_queries + first_q)
        n_queries = of_document
    inputs = (shared, heads, n_queries, n_keys, softmax_scale_log2)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consumer, (o, lse, sinks, inputs, window_left, place, 0, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (loader, (q, k, v, inputs, window_left, place, HEADS_PER_KV_HEAD, BLOCK_D, CONSUMERS, IS_CAUSAL)),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consumer, (o, lse, sinks, inputs, window_left, place, 0, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (consumer, (o, lse, sinks, inputs, window_left, place, 1, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (loader, (q, k, v, inputs, window_left, place, HEADS_PER_KV_HEAD, BLOCK_D, CONSUMERS, IS_CAUSAL)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (o, lse, sinks, inputs, window_left, place, 0, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (consumer, (o, lse, sinks, inputs, window_left, place, 1, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (consumer, (o, lse, sinks, inputs, window_left, place, 2, BLOCK_D, CONSUMERS, IS_CAUSAL, SOFTCAP_LOG2)),
                (loader, (q, k, v, inputs, window_left, place, HEADS_PER_KV_HEAD, BLOCK_D, CONSUMERS, IS_CAUSAL)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, LOADER_REGISTERS],
        )


@gluon.jit
def locate(heads, n_keys, window_left, place, BLOCK_M: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Compute this program's batch, head, first query, first key tile, and their number, which is at least one.

    With a causal mask the last queries see the most keys. They come first, so that the last programs are short.
    """
    batch_head = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
    tile = gl.program_id(1)
    end_n = n_keys
    if place is not None:
        tile = place.start // BLOCK_M
    elif IS_CAUSAL:
        tile = gl.num_programs(1) - 1 - tile
    if IS_CAUSAL:
        end_n = gl.minimum(n_keys, (tile + 1) * BLOCK_M)
    batch = batch_head // heads
    head = batch_head % heads
    start_m = tile * BLOCK_M
    end = gl.cdiv(end_n, BLOCK_N)
    if place is not None:  # there may be no keys
        end = gl.maximum(end, 1)
    first = 0
    if window_left is not None:
        first = gl.minimum(gl.maximum(start_m - window_left, 0) // BLOCK_N, end - 1)
    return batch, head, start_m, first, end - first


@gluon.jit
def loader(
    q,
    k,
    v,
    inputs,  # shared state of the partitions, and the problem's sizes
    window_left,
    place,
    HEADS_PER_KV_HEAD: gl.constexpr,
    BLOCK_D: gl.constexpr,
    CONSUMERS: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
):
    """Copy the queries, then keys and values; elements beyond the tensors' ends read as zero."""
    shared, heads, n_queries, n_keys, _ = inputs
    batch, head, start_m, first, steps = locate(heads, n_keys, window_left, place, CONSUMERS * 64, IS_CAUSAL)
    kv_head = head // HEADS_PER_KV_HEAD
    queries, keys = sequences(batch, n_queries, n_keys, place)
    TILE_BYTES: gl.constexpr = BLOCK_N * BLOCK_D * 2
    for i in gl.static_range(CONSUMERS):
        mbarrier.expect(shared.q_full.index(i), 64 * BLOCK_D * 2)
        q_tile = matrix_of(shared.q, i)
        load_matrix(q, queries, head, start_m + i * 64, shared.q_full.index(i), q_tile)
        if i == 0:
            mbarrier.expect(shared.full.index(0), TILE_BYTES)
            last = (first + steps - 1) * BLOCK_N
            load_matrix(k, keys, kv_head, last, shared.full.index(0), matrix_of(shared.k, 0))
    for t in range(1, steps):
        stage = t % STAGES
        start_n = (first + steps - 1 - t) * BLOCK_N
        wait_empty(shared.empty, t)
        full = shared.full.index(stage)
        mbarrier.expect(full, 2 * TILE_BYTES)
        load_matrix(k, keys, kv_head, start_n, full, matrix_of(shared.k, stage))
        load_matrix(v, keys, kv_head, start_n + BLOCK_N, full, matrix_of(shared.v, stage))
    stage_of_last = steps % STAGES
    wait_empty(shared.empty, steps)
    mbarrier.expect(shared.full.index(stage_of_last), TILE_BYTES)
    v_tile = matrix_of(shared.v, stage_of_last)
    load_matrix(v, keys, kv_head, first * BLOCK_N, shared.full.index(stage_of_last), v_tile)


@gluon.jit
def consumer(
    o,
    lse,
    sinks,
    inputs,  # shared state of the partitions, and the problem's sizes
    window_left,
    place,
    INDEX: gl.constexpr,  # index of this consumer
    BLOCK_D: gl.constexpr,
    CONSUMERS: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
):
    """Compute attention of 64 queries."""
    shared, heads, n_queries, n_keys, softmax_scale_log2 = inputs
    S: gl.constexpr = sum_layout(BLOCK_N)
    ROWS: gl.constexpr = gl.SliceLayout(1, sum_layout(wide_columns(BLOCK_D)))
    DTYPE: gl.constexpr = o.dtype
    NEXT: gl.constexpr = (INDEX + 1) % CONSUMERS
    if CONSUMERS > 1 and INDEX == CONSUMERS - 1:
        give_turn(0)
    batch, head, start_m, first, steps = locate(heads, n_keys, window_left, place, CONSUMERS * 64, IS_CAUSAL)
    end = first + steps
    start_m += INDEX * 64
    # Keys up to here are visible, by row: [64].
    last_key = gl.full([64], n_keys - 1, gl.int32, gl.SliceLayout(1, S))
    if IS_CAUSAL:
        last_key = gl.minimum(last_key, start_m + gl.arange(0, 64, layout=gl.SliceLayout(1, S)))
    first_key = last_key
    WINDOWED: gl.constexpr = window_left is not None
    if WINDOWED:
        first_key = start_m - window_left + gl.arange(0, 64, layout=gl.SliceLayout(1, S))

    q_tile = matrix_of(shared.q, INDEX)
    zero = gl.zeros([64, BLOCK_N], gl.float32, S)
    acc = zero_sums(BLOCK_D)  # unnormalized output
    row_max = gl.full([64], LOWEST, gl.float32, ROWS)  # of the scores, in units of log2
    row_sum = lane_sums(zero)  # of the exponentials

    mbarrier.wait(shared.q_full.index(INDEX), 0)
    mbarrier.wait(shared.full.index(0), 0)
    if CONSUMERS > 1:
        wait_for_turn(INDEX)
    scores = multiply_transposed(q_tile, matrix_of(shared.k, 0), zero)
    if CONSUMERS > 1:
        give_turn(NEXT)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(shared.empty.index(0))
    start_n = (end - 1) * BLOCK_N
    p, row_max, row_sum, _ = online_softmax(
        scores, row_max, row_sum, last_key, first_key, start_n, softmax_scale_log2, SOFTCAP_LOG2, WINDOWED, True
    )
    packed = pack(p, DTYPE)

    # The end of the tiles that all 64 queries see, except keys hidden by a window; the last tile is always masked.
    end_unmasked = end - 1
    if IS_CAUSAL:
        end_unmasked = gl.minimum((start_m + 1) // BLOCK_N, end_unmasked)
        if WINDOWED:
            end_unmasked = gl.maximum(end_unmasked, first)
        for t in range(1, end - end_unmasked):
            packed, acc, row_max, row_sum = step(
                *(t, end, packed, acc, row_max, row_sum, zero, q_tile, shared, last_key, first_key),
                *(softmax_scale_log2, INDEX, NEXT, BLOCK_D, CONSUMERS, SOFTCAP_LOG2, WINDOWED, True),
            )
    end_of_loop = steps
    if WINDOWED:
        begin_unmasked = gl.cdiv(gl.maximum(start_m + 63 - window_left, 0), BLOCK_N)
        end_of_loop = end - gl.minimum(gl.maximum(begin_unmasked, first), end_unmasked)
    for t in range(end - end_unmasked, end_of_loop):
        packed, acc, row_max, row_sum = step(
            *(t, end, packed, acc, row_max, row_sum, zero, q_tile, shared, last_key, first_key),
            *(softmax_scale_log2, INDEX, NEXT, BLOCK_D, CONSUMERS, SOFTCAP_LOG2, WINDOWED, False),
        )
    if WINDOWED:
        for t in range(end_of_loop, steps):
            packed, acc, row_max, row_sum = step(
                *(t, end, packed, acc, row_max, row_sum, zero, q_tile, shared, last_key, first_key),
                *(softmax_scale_log2, INDEX, NEXT, BLOCK_D, CONSUMERS, SOFTCAP_LOG2, WINDOWED, True),
            )

    wait_full(shared.full, steps)
    acc = add_product(acc, packed, matrix_of(shared.v, steps % STAGES))
    total = gl.convert_layout(gl.sum(row_sum, 1), ROWS)
    factor = 1.0
    if sinks is not None:  # the last score, whose value is zero
        sink = gl.load(sinks + head).to(gl.float32) * LOG2_E
        new_max = gl.maximum(row_max, sink)
        factor = gl.exp2(row_max - new_max)
        total = total * factor + gl.exp2(sink - new_max)
        row_max = new_max
    # A row without probabilities (all scores are -inf, or it sees no key) is zero, as in SDPA, and its L is -inf.
    acc = scale_rows(wait_for_sums(0, acc), factor / gl.where(total == 0, 1.0, total))
    for i in gl.static_range(len(acc)):
        q_tile[i].store(acc[i].to(DTYPE))
    fence_async_shared()
    offs_m = start_m + gl.arange(0, 64, layout=ROWS)
    queries, _ = sequences(batch, n_queries, n_keys, place)
    store_matrix(o, queries, head, start_m, q_tile)
    row = (batch * heads + head).to(gl.int64) * n_queries if place is None else place.of_head
    gl.store(lse + row + offs_m, (row_max + gl.log2(total)) * LN_2, mask=offs_m < n_queries)
    store_wait(0)
    if CONSUMERS > 1 and INDEX == 0:
        wait_for_turn(0)  # the last turn given, which no other consumer takes


@gluon.jit
def step(
    t,
    end,  # of the program's tiles of keys
    packed,  # last step's probabilities
    acc,
    row_max,
    row_sum,
    zero,
    q_tile,
    shared,
    last_key,
    first_key,
    softmax_scale_log2,
    INDEX: gl.constexpr,
    NEXT: gl.constexpr,
    BLOCK_D: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SOFTCAP_LOG2: gl.constexpr,
    WINDOWED: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Compute scores and softmax of this step's keys while the last step's probabilities are multiplied with their
    values.
    """
    stage = t % STAGES
    wait_full(shared.full, t)
    if CONSUMERS > 1:
        wait_for_turn(INDEX)
    scores = multiply_transposed(q_tile, matrix_of(shared.k, stage), zero)
    acc = add_product(acc, packed, matrix_of(shared.v, stage))
    if CONSUMERS > 1:
        give_turn(NEXT)
    scores = warpgroup_mma_wait(len(acc), deps=(scores,))
    start_n = (end - 1 - t) * BLOCK_N
    p, row_max, row_sum, correction = online_softmax(
        scores, row_max, row_sum, last_key, first_key, start_n, softmax_scale_log2, SOFTCAP_LOG2, WINDOWED, MASKED
    )
    acc = wait_for_sums(0, acc)
    mbarrier.arrive(shared.empty.index(stage))
    return pack(p, shared.q[0].dtype), scale_rows(acc, correction), row_max, row_sum


@gluon.jit
def online_softmax(
    scores,
    row_max,
    row_sum,
    last_key,  # that a row sees
    first_key,  # if WINDOWED
    start_n,
    softmax_scale_log2,
    SOFTCAP_LOG2: gl.constexpr,
    WINDOWED: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Compute probabilities relative to the new maximum, that maximum, the new sums, and the factor of older sums."""
    S: gl.constexpr = scores.type.layout
    ROWS: gl.constexpr = row_max.type.layout
    scores, scale = cap_scores(scores, softmax_scale_log2, SOFTCAP_LOG2)
    if MASKED:
        # A column number is a lane's part, bits 1 and 2, plus a part known at compile time. If they are split, each
        # score needs one comparison with a constant; comparing the whole number takes three more instructions.
        column = gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, S))
        last_column = (last_key - start_n)[:, None] - (column & 6)[None, :]
        scores = gl.where((column & ~6)[None, :] <= last_column, scores, float("-inf"))
        if WINDOWED:
            first_column = (first_key - start_n)[:, None] - (column & 6)[None, :]
            scores = gl.where((column & ~6)[None, :] >= first_column, scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.convert_layout(gl.max(scores, 1), ROWS) * scale)
    p = gl.exp2(scores * scale - gl.convert_layout(new_max, gl.SliceLayout(1, S))[:, None])
    correction = gl.exp2(row_max - new_max)
    sums = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout), assert_trivial=True)
    return p, new_max, row_sum * sums[:, None] + lane_sums(p), correction


@gluon.jit
def lane_sums(p):
    """Sum a row's elements in each of the four lanes that share it, [64, 4]; the lanes' sums are added at the end."""
    return gl.sum(gl.sum(p.reshape([64, p.shape[1] // 8, 4, 2]), 3), 1)
