"""Tile sizes for each problem: a fixed table, so that nothing is timed or compiled for tuning at run time.

The table was filled from sweeps on an H200 (for each of its entries some 100 forward and 200 backward shapes: tiles of
16 to 256 rows, 4 or 8 warps, 1 to 4 pipeline stages, loads by pointer or by descriptor, register limits), causal, with
1 and 16 heads of 512 to 32768 queries, at head dimensions 64 and 128, in bf16 and fp32. Other head dimensions use the
entry of the next larger one. Work is counted in queries, batch x heads x n_queries: for short sequences a small tile
keeps more SMs busy, and plain pointers save the cost of each descriptor on the host.
"""

from dataclasses import dataclass


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
    """Load through tensor descriptors, by the copy engine, instead of by pointers."""
    maxnreg: int | None = None
    """Registers that a thread may use; with fewer, another program fits on the SM."""
    group: int | None = None
    """The most heads whose tiles are interleaved in the launch order; all if None."""


@dataclass(frozen=True, kw_only=True)
class BackwardTiles:
    """Tile sizes and options of a launch of backward_kernel."""

    block_outer: int
    """Rows per program: keys where it computes dK and dV, queries where it computes dQ."""
    block_inner: int
    """Rows per iteration: queries where it computes dK and dV, keys where it computes dQ."""
    num_warps: int
    num_stages: int
    preprocess: bool = False
    """Compute L and D once in preprocess_kernel, which runs first, instead of for every key tile."""
    descriptors: bool = False
    """Load through tensor descriptors; needs preprocess, and block_outer = block_inner."""
    maxnreg: int | None = None
    group: int | None = None
    """As in ForwardTiles."""


def forward_group(block_d: int, n_queries: int) -> int | None:
    """Choose the heads in a group of the forward kernel: few if the keys of all do not fit into the L2 cache.

    At head dimensions up to 64 groups cost 3 to 8 %: the kernel is bound by exponentials, not by memory.
    """
    return 8 if block_d > 64 and n_queries >= 2048 else None


def backward_group(n_queries: int) -> int | None:
    """Choose the heads in a group of the backward kernel, which reads twice as much: up to 30 % faster."""
    return 8 if n_queries >= 1024 else None


def forward_tiles(is_fp32: bool, block_d: int, total_queries: int, n_queries: int, aligned: bool) -> ForwardTiles:
    """Choose the forward kernel's tiles.

    Args:
        is_fp32: inputs are fp32 rather than bf16 or fp16.
        block_d: head dimension, rounded up to a power of two.
        total_queries: batch x heads x n_queries.
        n_queries: length of one sequence of queries.
        aligned: rows of the inputs start at multiples of 16 bytes, as descriptors require.
    """
    if is_fp32:
        if block_d > 128:
            return ForwardTiles(block_m=32, block_n=16, num_warps=4, num_stages=1)
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


def backward_tiles(is_fp32: bool, block_d: int, total_queries: int, n_queries: int, aligned: bool) -> BackwardTiles:
    """Choose the backward kernel's tiles; arguments as in forward_tiles."""
    if is_fp32:
        return _backward_tiles_fp32(block_d, total_queries)
    if block_d > 128:
        return BackwardTiles(block_outer=64, block_inner=32, num_warps=8, num_stages=1)
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
        # Three stages hide latency best but need so much shared memory at d 128 that only one program fits on a
        # SM.
        num_stages=3 if block_d <= 64 or total_queries <= 8192 else 2,
        preprocess=True,
        descriptors=_descriptors_pay(total_queries, n_queries, aligned),
        # Three programs per SM, once there are enough of them: 168 registers x 128 threads x 3.
        maxnreg=168 if block_d <= 64 and total_queries > 16384 else None,
    )


def _descriptors_pay(total_queries: int, n_queries: int, aligned: bool) -> bool:
    """Whether the kernels run long enough to hide the cost of making descriptors on the host."""
    return aligned and (total_queries > 16384 or n_queries > 4096)


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
