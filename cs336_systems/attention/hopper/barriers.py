"""Barriers between the partitions of a program: mbarriers in shared memory, and turns on the tensor cores."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def allocate_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate barriers, [COUNT, 1], each of which ends a phase when ARRIVALS partitions have arrived."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def wait_full(barriers, step):
    """Wait until a ring's tiles of this step have been written; the ring has a stage for each barrier."""
    STAGES: gl.constexpr = barriers.shape[0]
    mbarrier.wait(barriers.index(step % STAGES), (step // STAGES) & 1)


@gluon.jit
def wait_empty(barriers, step):
    """Wait until a ring's tiles of step - STAGES have been read; at once in the first STAGES steps."""
    STAGES: gl.constexpr = barriers.shape[0]
    mbarrier.wait(barriers.index(step % STAGES), ((step // STAGES) & 1) ^ 1)


# Named barriers, by which warpgroups alternate: each waits for its own and opens the next one's. Triton uses the
# numbers 0, 1 and one more for each partition from 2 on; FIRST_TURN and the two after it are free in all kernels here.
# The backward kernels have two such warpgroups at most, and use the last number for the one of dQ alone.
FIRST_TURN = gl.constexpr(8)


@gluon.jit
def wait_for_turn(WARPGROUP: gl.constexpr):
    """Wait for this warpgroup's turn; its threads are half of the barrier's 256."""
    _named_barrier("sync", WARPGROUP, 256)


@gluon.jit
def give_turn(WARPGROUP: gl.constexpr):
    """Give the turn to a warpgroup."""
    _named_barrier("arrive", WARPGROUP, 256)


@gluon.jit
def sync_warpgroup():
    """Wait for all threads of the one warpgroup that calls this."""
    _named_barrier("sync", 2, 128)


@gluon.jit
def _named_barrier(INSTRUCTION: gl.constexpr, NUMBER: gl.constexpr, THREADS: gl.constexpr):
    # Inline assembly computes a tensor from a tensor: one element for each thread, and the result is unused.
    threads = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    assembly: gl.constexpr = f"bar.{INSTRUCTION} {FIRST_TURN + NUMBER}, {THREADS}; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(assembly, "=r,r", [threads], dtype=gl.int32, is_pure=False, pack=1)
