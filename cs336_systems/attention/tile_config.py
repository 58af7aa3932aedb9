"""Which kernel and which tile sizes serve a problem: a fixed table, so that nothing is timed or compiled at run time.

The table was filled from sweeps on an H200 (some 100 forward and 150 backward shapes a cell: tiles of 16 to 256 rows, 4
or 8 warps, 1 to 4 pipeline stages, loads by pointer or by descriptor, register limits), causal, with 1 and 16 heads of
512 to 16384 queries, at head dimensions 64 and 128, in bf16 and fp32. Other head dimensions take the row above them.
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
    """Registers a thread may use; fewer let a second program share the multiprocessor."""


@dataclass(frozen=True, kw_only=True)
class SinglePassTiles:
    """How single_pass_kernel is launched."""

    keys: int
    """Keys that a program owns."""
    queries: int
    """Queries that it takes at a time."""
    warps: int
    stages: int
    transposed: bool = False
    """Sum the transpose of dQ."""
    registers: int | None = None


@dataclass(frozen=True, kw_only=True)
class TwoPassTiles:
    """How two_pass_kernel is launched."""

    own: int
    """Keys or queries that a program owns."""
    take: int
    """Queries or keys that it takes at a time."""
    warps: int
    stages: int


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
        if rows < 8192:
            return ForwardTiles(queries=16, keys=128 if block_d <= 64 else 64, warps=4, stages=2)
        return ForwardTiles(queries=128, keys=64, warps=8, stages=1)
    if block_d > 128:
        return ForwardTiles(queries=64, keys=32, warps=4, stages=2)
    if (rows <= 16384 and n_queries <= 2048) or not aligned:
        return ForwardTiles(queries=64, keys=128 if block_d <= 64 else 64, warps=4, stages=2 if block_d <= 64 else 3)
    if rows < 65536:
        if block_d <= 64:
            return ForwardTiles(queries=64, keys=128, warps=4, stages=3, descriptors=True)
        if n_queries <= 2048:
            return ForwardTiles(queries=64, keys=64, warps=4, stages=3, descriptors=True)
        return ForwardTiles(queries=64, keys=128, warps=4, stages=2, descriptors=True)
    if block_d <= 64:
        return ForwardTiles(queries=128, keys=128, warps=8, stages=3, descriptors=True, registers=128)
    return ForwardTiles(queries=128, keys=64, warps=4, stages=2, descriptors=True)


def two_pass_tiles(full_precision: bool, block_d: int, rows: int) -> TwoPassTiles:
    """Tiles of the backward pass that gives the same bits every time; arguments as in forward_tiles."""
    if full_precision:
        if block_d > 128:
            return TwoPassTiles(own=16, take=16, warps=4, stages=1)
        if block_d > 64:
            few = rows < 8192
            return TwoPassTiles(own=32, take=64 if few else 32, warps=8 if few else 4, stages=2)
        if rows < 8192:
            return TwoPassTiles(own=16, take=64, warps=4, stages=2)
        return TwoPassTiles(own=64, take=64, warps=4, stages=1)
    if block_d > 128:
        return TwoPassTiles(own=64, take=32, warps=8, stages=1)
    if block_d > 64:
        return TwoPassTiles(own=64, take=32, warps=4, stages=3)
    return TwoPassTiles(own=64, take=64, warps=4, stages=2)


def backward_tiles(full_precision: bool, block_d: int, rows: int, aligned: bool) -> SinglePassTiles | TwoPassTiles:
    """Tiles of the faster backward pass; arguments as in forward_tiles."""
    if full_precision or rows <= 16384 or not aligned or block_d > 128:
        return two_pass_tiles(full_precision, block_d, rows)
    if block_d > 64:
        return SinglePassTiles(keys=128, queries=64, warps=8, stages=3)
    # Three programs a multiprocessor rather than two, once there are enough of them: 168 registers x 128 threads x 3.
    registers = 168 if rows >= 65536 else None
    return SinglePassTiles(keys=64, queries=64, warps=4, stages=2, transposed=True, registers=registers)
