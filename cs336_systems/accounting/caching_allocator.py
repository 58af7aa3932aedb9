"""PyTorch's caching allocator for GPU memory, without a GPU: its blocks, and which one a tensor gets.

A request of more than 1 MiB is served from a segment of 20 MiB, or of its size rounded up to 2 MiB if that is 10 MiB or
more; the remainder of a free block is split off if it is larger than 1 MiB, and otherwise stays with it. Smaller
requests are rounded up to 512 bytes. Rules of c10/cuda/CUDACachingAllocator.cpp (kSmallSize, kMinLargeAlloc,
kRoundLarge) with default settings, on one stream.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from cs336_systems.accounting.units import MIB

SMALL = MIB
LARGE = 10 * MIB
SEGMENT = 20 * MIB
ROUND_LARGE = 2 * MIB
ROUND_SMALL = 512
SMALL_SEGMENT = 2 * MIB
"""Size of a segment of the pool for small requests; the other pool's segments are larger."""


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment, free or in use, linked to its neighbours."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def key(self) -> tuple[int, int]:
        """The order in which free blocks are tried: the smallest first."""
        return self.size, self.address


def rounded(requested: int) -> int:
    """Bytes of the smallest block that serves a request."""
    return max(-(-requested // ROUND_SMALL), 1) * ROUND_SMALL


class Blocks:
    """All blocks of a device, by address."""

    def __init__(self) -> None:
        self._at: dict[int, Block] = {}

    def add_segment(self, address: int, size: int) -> Block:
        """Add a new segment, which is one free block."""
        return self.add_block(address, size, size == SMALL_SEGMENT)

    def add_block(self, address: int, size: int, small: bool, free: bool = True, before: Block | None = None) -> Block:
        """Add a block of a segment after the previous one."""
        block = self._at[address] = Block(address, size, small, free, before)
        if before:
            before.after = block
        return block

    def remove_segment(self, address: int) -> None:
        """Remove a segment (one free block) that is returned to the driver."""
        del self._at[address]

    def use(self, address: int, requested: int) -> int:
        """Serve a request from the free block at an address; return the bytes of the block that serves it."""
        block, size = self._at[address], rounded(requested)
        rest, after = block.size - size, block.after
        if rest >= ROUND_SMALL if block.small else rest > SMALL:
            block.size = size
            divided = self.add_block(address + size, rest, block.small, True, block)
            divided.after = after
            if after:
                after.before = divided
        block.free = False
        return block.size

    def free(self, address: int) -> Block:
        """Free a block, merge it with its free neighbours, and return the result."""
        block = self._at[address]
        block.free = True
        if block.after and block.after.free:
            self._join(block, block.after)
        if block.before and block.before.free:
            return self._join(block.before, block)
        return block

    def _join(self, first: Block, second: Block) -> Block:
        del self._at[second.address]
        first.size += second.size
        first.after = second.after
        if second.after:
            second.after.before = first
        return first


class CachingAllocator(Blocks):
    """Allocates and frees blocks, and counts the bytes in use and the bytes held."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.reserved = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    def allocate(self, size: int) -> Block:
        """Allocate the smallest free block that is large enough, or one of a new segment."""
        wanted = rounded(size)
        small = wanted <= SMALL
        free = self._free[small]
        at = bisect_left(free, (wanted, -1))
        block = self._at[free.pop(at)[1]] if at < len(free) else self._segment(wanted, small)
        whole = block.size
        self.allocated += self.use(block.address, size)
        if block.size < whole and block.after:
            insort(free, block.after.key)
        return block

    def release(self, block: Block) -> None:
        """Free a block, and merge it with its free neighbours."""
        self.allocated -= block.size
        free = self._free[block.small]
        for other in (block.before, block.after):
            if other is not None and other.free:
                free.remove(other.key)
        insort(free, self.free(block.address).key)

    def _segment(self, wanted: int, small: bool) -> Block:
        size = -(-wanted // ROUND_LARGE) * ROUND_LARGE if wanted >= LARGE else SEGMENT
        block = self.add_segment(self.reserved, SMALL_SEGMENT if small else size)
        self.reserved += block.size
        return block


@cache
def fresh_excess(sizes: Sequence[int]) -> int:
    """Bytes by which tensors that are allocated one after another from new segments exceed the requested bytes.

    >>> fresh_excess((25 * MIB,)) // MIB
    1
    """
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.allocated - sum(sizes)
