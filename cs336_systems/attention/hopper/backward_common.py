"""Helpers of the two backward kernels for Hopper: a program's work, and the parts of a step.

A program owns 128 keys of one head and goes through the queries that see them, 64 at a time. Two warpgroups own 64 keys
each and compute, with all matrices transposed so that P^T and dS^T feed the next matmuls from registers,

    S^T = K Q^T,   P^T = exp(S^T - L),   dV += P^T dO,   dP^T = V dO^T,   dS^T = P^T * (dP^T - D),   dK += dS^T Q.

A third warpgroup reads dS^T from shared memory and computes this program's share of dQ = dS K. Other programs have
shares of the same rows, so it is added to an fp32 buffer by atomic additions, whose order differs from run to run
unless programs take turns.

Where DETERMINISTIC, all programs go from the last query tile to the first, and the shares of a query tile are added in
the order of their keys. A program that starts later has later keys, so it waits only for programs that have started.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from cs336_systems.attention.hopper.barriers import sync_warpgroup
from cs336_systems.attention.hopper.copies import store_wait
from cs336_systems.attention.hopper.documents import Place, locate_in_documents, sequences
from cs336_systems.attention.hopper.head_tiles import store_matrix
from cs336_systems.attention.hopper.softcap import cap_scores

NEVER = gl.constexpr(2**31 - 1)  # beyond all queries


class Work(NamedTuple):
    """The keys that a program owns in a head, and the query tiles it processes."""

    start_n: Any
    """The first of the program's 128 keys."""
    query_tiles: Any
    """Query tiles of the head."""
    first: Any
    """The query tile of the first step."""
    steps: Any
    """Number of query tiles that see one of the keys; with a causal mask and more keys than queries there may be
    none."""
    leading: Any
    """With a window: number of first query tiles that need a mask."""
    trailing: Any
    """With a window: number of last query tiles that need a mask. Their steps follow the first tiles' steps."""


@gluon.jit
def locate_document(cu_seqlens_q, cu_seqlens_k, documents, n_queries, n_keys):
    """Compute this program's Place, and the numbers of queries and keys of its document."""
    start_n, document, first_k, of_document, first_q, seen = locate_in_documents(
        gl.program_id(1), cu_seqlens_k, cu_seqlens_q, documents, n_keys, 128
    )
    head_tiles = n_queries // 64 + documents + 1
    of_head = locate_head() * head_tiles + first_q // 64 + document
    return Place(start_n, first_q, first_k, of_head), seen, of_document


@gluon.jit
def locate(n_queries, n_keys, window_left, place, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr):
    """Compute this program's Work: with a causal mask, keys seen by the most queries come first.

    Without a mask the programs of a head start at different query tiles, so that they add to different rows of dQ.
    """
    start_n = gl.program_id(1) * 128 if place is None else place.start
    query_tiles = gl.cdiv(n_queries, 64)
    if IS_CAUSAL:
        first = gl.minimum(start_n // 64, query_tiles)
        steps = query_tiles - first
    else:
        first = (start_n // 64) % (query_tiles if place is None else gl.maximum(query_tiles, 1))
        steps = query_tiles
    work = Work(start_n, query_tiles, first, steps, 0, 0)
    if window_left is not None:
        steps = gl.minimum(query_tiles, gl.cdiv(start_n + 128 + window_left, 64)) - first
        leading = masked_steps(Work(start_n, query_tiles, first, steps, 0, 0), n_keys, IS_CAUSAL, RAGGED)
        trailing = steps - gl.minimum(gl.maximum((window_left + 1) // 64, leading), steps)
        work = Work(start_n, query_tiles, first, steps, leading, trailing)
    return work


@gluon.jit
def locate_head():
    """Compute this program's index in batch x heads; called only where needed, to save a register before."""
    return gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)


@gluon.jit
def first_query_tile(work, place):
    """The number of query tiles before those of this program's sequence and head."""
    return locate_head() * work.query_tiles if place is None else place.of_head


@gluon.jit
def query_tile(work, j, window_left, IS_CAUSAL: gl.constexpr, DETERMINISTIC: gl.constexpr):
    """The query tile of step j."""
    tile = work.first + j
    if DETERMINISTIC:
        tile = work.steps - 1 - j
        if IS_CAUSAL:
            tile += work.first
    elif window_left is not None:
        masked = work.leading + work.trailing
        shift = gl.where(j < masked, work.steps - masked, -work.trailing)
        tile += gl.where(j < work.leading, 0, shift)
    return tile if IS_CAUSAL else gl.where(tile < work.query_tiles, tile, tile - work.query_tiles)


@gluon.jit
def masked_steps(work, n_keys, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr):
    """Number of first steps that need a mask: all if keys are beyond the end, else the steps on the diagonal.

    With a window, the steps at its end follow.
    """
    masked = gl.minimum(work.steps, 2) if IS_CAUSAL else work.steps * 0
    if RAGGED:
        masked = gl.where(work.start_n + 128 > n_keys, work.steps, masked)
    return masked + work.trailing


@gluon.jit
def steps_of_first_loop(
    work, n_keys, window_left, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr, DETERMINISTIC: gl.constexpr
):
    """How many steps the first of two loops has: those with a mask, or where DETERMINISTIC those without.

    There a window makes all steps have one, since masked query tiles come first, in between and last.
    """
    steps = masked_steps(work, n_keys, IS_CAUSAL, RAGGED)
    if DETERMINISTIC:
        steps = work.steps - steps if window_left is None else work.steps * 0
    return steps


@gluon.jit
def first_queries(start_n, n_keys, S: gl.constexpr, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr):
    """The first query that sees each of 64 keys, [64] int32; none sees a key beyond the end."""
    offs_n = start_n + gl.arange(0, 64, layout=gl.SliceLayout(1, S))
    first = offs_n if IS_CAUSAL else offs_n * 0
    if RAGGED:
        first = gl.where(offs_n < n_keys, first, NEVER)
    return first


@gluon.jit
def probabilities(
    scores,
    lse,
    start_m,
    first_query,  # that sees a key
    softmax_scale_log2,
    window_left,
    SOFTCAP_LOG2: gl.constexpr,
    MASKED: gl.constexpr,
):
    """P^T, [64 keys, 64 queries] fp32; queries beyond the end have an infinite L and P = 0."""
    scores, scale = cap_scores(scores, softmax_scale_log2, SOFTCAP_LOG2)
    p = gl.exp2(scores * scale - lse[None, :])
    if MASKED:
        # One comparison with a constant per element, as in the forward kernel.
        column = gl.arange(0, 64, layout=gl.SliceLayout(0, scores.type.layout))
        first_column = (first_query - start_m)[:, None] - (column & 6)[None, :]
        p = gl.where((column & ~6)[None, :] >= first_column, p, 0.0)
        if window_left is not None:  # the last query that sees a key is the first one's window_left-th successor
            p = gl.where((column & ~6)[None, :] <= first_column + window_left, p, 0.0)
    return p


@gluon.jit
def store_gradient(gradient, sums, factor, matrix, heads, n_keys, start_n, place):
    """Write sums times a factor to 64 rows of a gradient (a descriptor), through a matrix in shared memory."""
    for i in gl.static_range(len(sums)):
        matrix[i].store((sums[i] * factor).to(matrix[0].dtype))
    fence_async_shared()
    batch_head = locate_head()
    _, keys = sequences(batch_head // heads, 0, n_keys, place)
    store_matrix(gradient, keys, batch_head % heads, start_n, matrix)
    store_wait(0)


@gluon.jit
def add_dq(dq, x, tile, COLUMNS: gl.constexpr):
    """Add x, 64 rows in fp32, to the buffer from a tile on, in the order in which registers of a warpgroup hold it.

    Four elements of a thread are neighbours there, so each addition has 16 bytes. attention_postprocess_kernel undoes
    the order. Tiles have COLUMNS columns; x may be several tiles wide.
    """
    # [warp, row half, lane / 4, column / 8, lane % 4, pair] -> [column / 8, warp, lane / 4, lane % 4, row half, pair]
    flat = x.reshape([4, 2, 8, x.shape[1] // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([64 * x.shape[1]])
    offsets = gl.arange(0, 64 * x.shape[1], layout=flat.type.layout)
    gl.atomic_add(dq + tile.to(gl.int64) * (64 * COLUMNS) + offsets, flat, sem="relaxed")


# Turns at adding to dQ: programs with earlier keys first, two query tiles at a time. Ending a turn and beginning one
# take a trip to the L2 cache, which two steps hide where one does not. Each program that sees one of a pair of query
# tiles sees its first one, comes to it last, and ends the turn there.


@gluon.jit
def await_turn(added, head_tiles, tile, is_first, window_left, place):
    """Begin to wait until earlier keys have added to dQ of a pair of query tiles, at the first step of the pair.

    One warp waits; sync_warpgroup makes the others wait for it. There are as many programs with earlier keys as key
    tiles before this program's that no window hides. head_tiles query tiles of other heads come first.
    """
    if is_first | (tile % 2 == 1):
        first = tile // 2 * 2
        number = gl.program_id(1) if place is None else place.start // 128
        if window_left is not None:
            number -= gl.maximum(first * 64 - window_left, 0) // 128
        assembly: gl.constexpr = """{
            .reg .pred waits; .reg .b32 count;
            shr.u32 count, $3, 5;
            setp.eq.b32 waits, count, 1;
            again: @waits ld.acquire.gpu.global.b32 count, [$1];
            @waits setp.ne.b32 waits, count, $2;
            @waits bra again;
            mov.b32 $0, $3;
        }"""
        _in_each_thread(assembly, added + head_tiles + first, number)


@gluon.jit
def end_turn(added, head_tiles, tile):
    """Count this program's share of a pair of query tiles, at its last step, once all threads have added theirs."""
    if tile % 2 == 0:
        sync_warpgroup()
        assembly: gl.constexpr = """{
            .reg .pred counts;
            setp.eq.b32 counts, $3, 0;
            @counts red.release.gpu.global.add.u32 [$1], $2;
            mov.b32 $0, $3;
        }"""
        _in_each_thread(assembly, added + head_tiles + tile, 1)


@gluon.jit
def _in_each_thread(ASSEMBLY: gl.constexpr, pointer, number):
    # As in barriers.py: one element for each thread, and the result is unused.
    threads = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    operands: gl.constexpr = "=r,l,r,r"
    arguments = [pointer + threads * 0, number + threads * 0, threads]
    gl.inline_asm_elementwise(ASSEMBLY, operands, arguments, dtype=gl.int32, is_pure=False, pack=1)
