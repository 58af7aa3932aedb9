"""PyTorch's caching allocator of GPU memory, without a GPU: which block a tensor gets, and what is split off.

Rules of c10/cuda/CUDACachingAllocator.cpp with default settings, on one stream.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from cs336_systems.accounting.allocator_rounding import LARGE, ROUND_LARGE, ROUND_SMALL, SEGMENT, SMALL
from cs336_systems.accounting.units import MIB

SMALL_SEGMENT = 2 * MIB


@dataclass(eq=False)
class Block:
    """A piece of a segment, free or in use."""

    address: int
    size: int
    small: bool
    before: "Block | None" = None
    after: "Block | None" = None
    free: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """The order in which free blocks are tried: the smallest first."""
        return self.size, self.address


class CachingAllocator:
    """Allocates and frees blocks, and counts the bytes in use and those that it holds."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}

    def allocate(self, size: int) -> Block:
        """Allocate the smallest free block that is large enough, or one of a new segment."""
        wanted = max(ROUND_SMALL, -(-size // ROUND_SMALL) * ROUND_SMALL)
        small = wanted <= SMALL
        free = self._free[small]
        at = bisect_left(free, (wanted, -1))
        block = self._blocks[free.pop(at)[1]] if at < len(free) else self._segment(wanted, small)
        left = block.size - wanted
        if left >= ROUND_SMALL if small else left > SMALL:
            self._split(block, wanted)
        block.free = False
        self.allocated += block.size
        return block

    def release(self, block: Block) -> None:
        """Free a block, and join it with the free blocks next to it."""
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._free[block.small].remove(other.key)
        if block.after is not None and block.after.free:
            self._join(block, block.after)
        if block.before is not None and block.before.free:
            block = self._join(block.before, block)
        self._offer(block)

    def _segment(self, wanted: int, small: bool) -> Block:
        size = -(-wanted // ROUND_LARGE) * ROUND_LARGE if wanted >= LARGE else SEGMENT
        if small:
            size = SMALL_SEGMENT
        block = Block(self.reserved, size, small)
        self._blocks[block.address] = block
        self.reserved += size
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._blocks[rest.address] = rest
        self._offer(rest)

    def _offer(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.small], block.key)

    def _join(self, first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._blocks[second.address]
        return first
