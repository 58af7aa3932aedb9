"""Which tile sizes serve a problem: a fixed table, so that nothing is timed or compiled at run time.

The table was filled from sweeps on an H200 (some 100 forward and 200 backward shapes a cell: tiles of 16 to 256 rows, 4
or 8 warps, 1 to 4 pipeline stages, loads by pointer or by descriptor, register limits), causal, with 1 and 16 heads of
512 to 32768 queries, at head dimensions 64 and 128, in bf16 and fp32. Other head dimensions take the row above them.
Work is counted in rows, batch x heads x queries: with few rows a small tile keeps more multiprocessors busy, and plain
pointers save the 8 microseconds that each descriptor costs the host.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ForwardTiles:
    """How forward_kernel is launched."""

    queries: int
    """Queries that a program owns."""
    keys: int
    """Keys that it takes at a time."""
    warps: int
    stages: int
    """Depth of the software pipeline."""
    descriptors: bool = False
    """Load through the copy engine instead of by pointers."""
    registers: int | None = None
    """Registers a thread may use; fewer let another program share the multiprocessor."""


@dataclass(frozen=True, kw_only=True)
class BackwardTiles:
    """How backward_kernel is launched."""

    own: int
    """Keys, or queries, that a program owns."""
    take: int
    """Queries, or keys, that it takes at a time."""
    warps: int
    stages: int
    statistics: bool = False
    """L and D come from a kernel that runs first, instead of being computed again for every tile of keys."""
    descriptors: bool = False
    """Load through the copy engine; needs statistics, and own = take."""
    registers: int | None = None


def forward_tiles(full_precision: bool, block_d: int, rows: int, n_queries: int, aligned: bool) -> ForwardTiles:
    """The forward kernel's tiles.

    Args:
        full_precision: inputs are fp32 rather than bf16 or fp16.
        block_d: head dimension, rounded up to a power of two.
        rows: batch x heads x queries.
        n_queries: length of one sequence of queries.
        aligned: rows of the inputs start at multiples of 16 bytes, as descriptors need it.
    """
    if full_precision:
        if block_d > 128:
            return ForwardTiles(queries=32, keys=16, warps=4, stages=1)
        if rows >= 8192:
            return ForwardTiles(queries=128, keys=64, warps=8, stages=1)
        if block_d > 64:
            return ForwardTiles(queries=16, keys=64, warps=8, stages=2)
        return ForwardTiles(queries=16, keys=128, warps=4, stages=2)
    if block_d > 128:
        return ForwardTiles(queries=64, keys=32, warps=4, stages=2)
    if not _descriptors_pay(rows, n_queries, aligned):
        few = rows <= 2048 and n_queries > 256
        if block_d > 64:
            return ForwardTiles(queries=16 if few else 64, keys=128 if few else 64, warps=4, stages=3)
        return ForwardTiles(queries=16 if few else 64, keys=256 if few else 128, warps=4, stages=2)
    if rows < 65536:
        if block_d <= 64:
            return ForwardTiles(queries=64, keys=128, warps=4, stages=3, descriptors=True)
        if n_queries <= 2048:
            return ForwardTiles(queries=64, keys=64, warps=4, stages=3, descriptors=True)
        return ForwardTiles(queries=64, keys=128, warps=4, stages=2, descriptors=True)
    if block_d <= 64:
        return ForwardTiles(queries=128, keys=128, warps=8, stages=3, descriptors=True, registers=128)
    return ForwardTiles(queries=128, keys=64, warps=4, stages=2, descriptors=True)


def backward_tiles(full_precision: bool, block_d: int, rows: int, n_queries: int, aligned: bool) -> BackwardTiles:
    """The backward kernel's tiles; arguments as in forward_tiles."""
    if full_precision:
        return _backward_tiles_fp32(block_d, rows)
    if block_d > 128:
        return BackwardTiles(own=64, take=32, warps=8, stages=1)
    if n_queries <= 512 and rows <= 16384:
        if block_d <= 64:
            return BackwardTiles(own=64, take=64, warps=4, stages=2)
        return BackwardTiles(own=64, take=32, warps=4, stages=3)
    if rows < 4096:
        return BackwardTiles(own=32, take=128, warps=4, stages=3, statistics=True)
    # Three stages hide latency best but need so much shared memory at d 128 that one program fills a multiprocessor.
    stages = 3 if block_d <= 64 or rows <= 8192 else 2
    # Three programs a multiprocessor, once there are enough of them: 168 registers x 128 threads x 3.
    registers = 168 if block_d <= 64 and rows > 16384 else None
    descriptors = _descriptors_pay(rows, n_queries, aligned)
    return BackwardTiles(
        own=64, take=64, warps=4, stages=stages, statistics=True, descriptors=descriptors, registers=registers
    )


def _descriptors_pay(rows: int, n_queries: int, aligned: bool) -> bool:
    """Whether the kernels run long enough to hide what making descriptors costs the host."""
    return aligned and (rows > 16384 or n_queries > 4096)


def _backward_tiles_fp32(block_d: int, rows: int) -> BackwardTiles:
    if block_d > 128:
        return BackwardTiles(own=16, take=16, warps=4, stages=1)
    if block_d > 64:
        if rows < 8192:
            return BackwardTiles(own=16 if rows < 4096 else 32, take=64, warps=8, stages=2, statistics=True)
        return BackwardTiles(own=32, take=32, warps=4, stages=2, statistics=True)
    if rows < 8192:
        return BackwardTiles(own=16, take=64, warps=8 if block_d > 32 else 4, stages=2, statistics=rows >= 1024)
    return BackwardTiles(own=64, take=64, warps=4, stages=1, statistics=True)
