"""Bytes by which PyTorch's caching allocator exceeds what tensors ask for.

A request of more than 1 MiB is served from a segment of 20 MiB, or of its size rounded up to 2 MiB if that is 10 MiB or
more; what is left of a free block is split off if it is more than 1 MiB, and otherwise given away with it. Smaller
requests are rounded to 512 bytes (c10/cuda/CUDACachingAllocator.cpp: kSmallSize, kMinLargeAlloc, kRoundLarge).
"""

from collections.abc import Iterable

from cs336_systems.accounting.units import MIB

SMALL = MIB
LARGE = 10 * MIB
SEGMENT = 20 * MIB
ROUND_LARGE = 2 * MIB
ROUND_SMALL = 512
REUSED = MIB // 5
"""Mean excess of a tensor above 1 MiB that is carved out of what other tensors have left: of recorded steps."""


def fresh_excess(sizes: Iterable[int]) -> int:
    """Excess of tensors that are allocated one after another from new segments, bytes.

    >>> fresh_excess([25 * 2**20]) // 2**20
    1
    """
    excess, free = 0, 0  # free: of the last segment of 20 MiB
    for size in sizes:
        if size <= SMALL:
            excess += -size % ROUND_SMALL
            continue
        if size >= LARGE:
            left = -size % ROUND_LARGE
        else:
            free = (free if free >= size else SEGMENT) - size
            left = free
        if left <= SMALL:
            excess += left
            free = 0 if size < LARGE else free
    return excess


def reused_excess(sizes: Iterable[int]) -> int:
    """Mean excess of tensors that fit into what others have left, bytes."""
    return REUSED * sum(size > SMALL for size in sizes)
