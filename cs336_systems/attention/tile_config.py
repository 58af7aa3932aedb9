"""Tile sizes for each chip and problem: fixed tables, so that nothing is timed or compiled for tuning at run time.

The table for data-center GPUs from Hopper on is from sweeps on an H200 (for each of its entries some 100 forward and
200 backward shapes: tiles of 16 to 256 rows, 4 or 8 warps, 1 to 4 pipeline stages, loads by pointer or by descriptor,
register limits), causal, with 1 and 16 heads of 512 to 32768 queries, at head dimensions 64 and 128, in bf16 and fp32.
Work is counted in queries, batch x heads x n_queries: for short sequences a small tile keeps more SMs busy, and plain
pointers save the cost of each descriptor on the host.

The other two tables were chosen by compiling, not by timing: the tiles fit into the shared memory, spill (almost) no
registers, and leave room for eight warps on an SM. They load through pointers, since before Hopper Triton turns
descriptors into scalar loads without a pipeline.

Head dimensions without an entry use the next larger one's.
"""

from dataclasses import dataclass, replace

from cs336_systems.attention.chip import H200, Chip


@dataclass(frozen=True, kw_only=True)
class ForwardTiles:
    """Tile sizes and options of a launch of forward_kernel."""

    block_m: int
    """Queries per program."""
    block_n: int
    """Keys per iteration."""
    num_warps: int
    num_stages: int
    """Depth of the software pipeline."""
    descriptors: bool = False
    """Load through tensor descriptors, with the copy engine, instead of through pointers."""
    maxnreg: int | None = None
    """Maximum number of registers per thread; with fewer, another program fits on the SM."""
    group: int | None = None
    """Maximum number of heads whose tiles are interleaved in the launch order; all if None."""


@dataclass(frozen=True, kw_only=True)
class BackwardTiles:
    """Tile sizes and options of a launch of backward_kernel."""

    block_outer: int
    """Rows per program: keys if it computes dK and dV, queries if it computes dQ."""
    block_inner: int
    """Rows per iteration: queries if it computes dK and dV, keys if it computes dQ."""
    num_warps: int
    num_stages: int
    preprocess: bool = False
    """Compute L and D once in preprocess_kernel, which runs first, instead of for every key tile."""
    descriptors: bool = False
    """Load through tensor descriptors; needs preprocess, and block_outer = block_inner."""
    maxnreg: int | None = None
    group: int | None = None
    """As in ForwardTiles."""


MAX_DESCRIBED = 2**29
"""Maximum number of queries: the descriptor of L and D indexes two rounded-up values per query in 32 bits."""


Sizes = tuple[int, int, int, int]
"""Two blocks, num_warps and num_stages."""


def _tiles(forward: Sizes, backward: Sizes) -> tuple[ForwardTiles, BackwardTiles]:
    """Tiles of block_m x block_n, and of block_outer x block_inner."""
    m, n, warps, stages = forward
    forward_tiles = ForwardTiles(block_m=m, block_n=n, num_warps=warps, num_stages=stages)
    outer, inner, warps, stages = backward
    backward_tiles = BackwardTiles(block_outer=outer, block_inner=inner, num_warps=warps, num_stages=stages)
    return forward_tiles, replace(backward_tiles, preprocess=True)


KB_99 = {
    (False, 64): _tiles((64, 64, 4, 3), (64, 64, 4, 2)),
    (False, 128): _tiles((128, 32, 8, 2), (64, 64, 8, 2)),
    (False, 256): _tiles((64, 32, 8, 2), (32, 32, 8, 2)),
    (True, 64): _tiles((64, 32, 4, 2), (32, 32, 4, 2)),
    (True, 128): _tiles((32, 32, 4, 1), (16, 64, 8, 1)),
    (True, 256): _tiles((16, 32, 4, 1), (16, 16, 8, 1)),
}
"""Tiles by (is_fp32, head dimension) for 99 KB of shared memory: GeForce RTX 30 to 50, A10, L4, RTX PRO 6000."""
KB_163 = KB_99 | {
    (False, 64): _tiles((128, 64, 4, 3), (64, 64, 4, 3)),
    (False, 128): _tiles((128, 64, 8, 3), (64, 64, 8, 2)),
    (False, 256): _tiles((64, 64, 8, 2), (64, 32, 8, 2)),
}
"""The same for 163 KB, where larger tiles fit: A100, A30."""


def forward_group(block_d: int, n_queries: int) -> int | None:
    """Choose the heads in a group of the forward kernel: few if the keys of all heads do not fit into the L2 cache.

    At head dimensions up to 64 groups cost 3 to 8 %: the kernel is bound by exponentials, not by memory.
    """
    return 8 if block_d > 64 and n_queries >= 2048 else None


def backward_group(n_queries: int) -> int | None:
    """Choose the heads in a group of the backward kernel, which reads twice as much: up to 30 % faster."""
    return 8 if n_queries >= 1024 else None


def forward_tiles(
    chip: Chip, is_fp32: bool, block_d: int, total_queries: int, n_queries: int, aligned: bool
) -> ForwardTiles:
    """Choose the forward kernel's tiles.

    Args:
        chip: must have 99 KB of shared memory.
        is_fp32: inputs are fp32, not bf16 or fp16.
        block_d: head dimension, rounded up to a power of two.
        total_queries: batch x heads x n_queries, scaled up on a chip with fewer SMs than an H200.
        n_queries: length of one sequence of queries.
        aligned: rows of the inputs start at multiples of 16 bytes, as descriptors require.
    """
    if not _like_h200(chip):
        return _compiled_tiles(chip, is_fp32, block_d)[0]
    if is_fp32:
        if block_d > 128:
            return ForwardTiles(block_m=16, block_n=32, num_warps=4, num_stages=1)
        if total_queries >= 8192:
            return ForwardTiles(block_m=128, block_n=64, num_warps=8, num_stages=1)
        if block_d > 64:
            return ForwardTiles(block_m=16, block_n=64, num_warps=8, num_stages=2)
        return ForwardTiles(block_m=16, block_n=128, num_warps=4, num_stages=2)
    if block_d > 128:
        return ForwardTiles(block_m=64, block_n=32, num_warps=4, num_stages=2)
    if not _descriptors_pay(total_queries, n_queries, aligned):
        if total_queries <= 2048 and n_queries > 256:
            if block_d > 64:
                return ForwardTiles(block_m=16, block_n=128, num_warps=4, num_stages=3)
            return ForwardTiles(block_m=16, block_n=256, num_warps=4, num_stages=2)
        if block_d > 64:
            return ForwardTiles(block_m=64, block_n=64, num_warps=4, num_stages=3)
        return ForwardTiles(block_m=64, block_n=128, num_warps=4, num_stages=2)
    if total_queries < 65536:
        if block_d <= 64:
            return ForwardTiles(block_m=64, block_n=128, num_warps=4, num_stages=3, descriptors=True)
        if n_queries <= 2048:
            return ForwardTiles(block_m=64, block_n=64, num_warps=4, num_stages=3, descriptors=True)
        return ForwardTiles(block_m=64, block_n=128, num_warps=4, num_stages=2, descriptors=True)
    if block_d <= 64:
        return ForwardTiles(block_m=128, block_n=128, num_warps=8, num_stages=3, descriptors=True, maxnreg=128)
    return ForwardTiles(block_m=128, block_n=64, num_warps=4, num_stages=2, descriptors=True)


def backward_tiles(
    chip: Chip, is_fp32: bool, block_d: int, total_queries: int, n_queries: int, aligned: bool
) -> BackwardTiles:
    """Choose the backward kernel's tiles; arguments as in forward_tiles."""
    if not _like_h200(chip):
        return _compiled_tiles(chip, is_fp32, block_d)[1]
    if is_fp32:
        return _backward_tiles_fp32(block_d, total_queries)
    if block_d > 128:
        return BackwardTiles(block_outer=64, block_inner=32, num_warps=8, num_stages=2, preprocess=True)
    if n_queries <= 512 and total_queries <= 16384:
        if block_d <= 64:
            return BackwardTiles(block_outer=64, block_inner=64, num_warps=4, num_stages=2)
        return BackwardTiles(block_outer=64, block_inner=32, num_warps=4, num_stages=3)
    if total_queries < 4096:
        return BackwardTiles(block_outer=32, block_inner=128, num_warps=4, num_stages=3, preprocess=True)
    return BackwardTiles(
        block_outer=64,
        block_inner=64,
        num_warps=4,
        # Three stages hide latency best, but at d 128 they need so much shared memory that only one program fits on an
        # SM.
        num_stages=3 if block_d <= 64 or total_queries <= 8192 else 2,
        preprocess=True,
        descriptors=_descriptors_pay(total_queries, n_queries, aligned),
        # Three programs per SM, once there are enough of them: 168 registers x 128 threads x 3.
        maxnreg=168 if block_d <= 64 and total_queries > 16384 else None,
    )


def _like_h200(chip: Chip) -> bool:
    return chip.capability >= H200.capability and chip.shared_memory >= H200.shared_memory


def _compiled_tiles(chip: Chip, is_fp32: bool, block_d: int) -> tuple[ForwardTiles, BackwardTiles]:
    table = KB_163 if chip.shared_memory >= 163 * 1024 else KB_99
    return table[is_fp32, max(64, block_d)]


def _descriptors_pay(total_queries: int, n_queries: int, aligned: bool) -> bool:
    """Whether the kernels run long enough to hide the host overhead of making descriptors."""
    return aligned and (total_queries > 16384 or n_queries > 4096) and total_queries < MAX_DESCRIBED


def _backward_tiles_fp32(block_d: int, total_queries: int) -> BackwardTiles:
    if block_d > 128:
        return BackwardTiles(block_outer=16, block_inner=16, num_warps=4, num_stages=1)
    if block_d > 64:
        if total_queries < 4096:
            return BackwardTiles(block_outer=16, block_inner=64, num_warps=8, num_stages=2, preprocess=True)
        if total_queries < 8192:
            return BackwardTiles(block_outer=32, block_inner=64, num_warps=8, num_stages=2, preprocess=True)
        return BackwardTiles(block_outer=32, block_inner=32, num_warps=4, num_stages=2, preprocess=True)
    if total_queries < 8192:
        num_warps, preprocess = 8 if block_d > 32 else 4, total_queries >= 1024
        return BackwardTiles(block_outer=16, block_inner=64, num_warps=num_warps, num_stages=2, preprocess=preprocess)
    return BackwardTiles(block_outer=64, block_inner=64, num_warps=4, num_stages=1, preprocess=True)
