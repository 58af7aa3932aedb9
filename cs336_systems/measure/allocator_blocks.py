"""The blocks of PyTorch's caching allocator: how many bytes it counts for a request. No torch here.

The allocator's history has the bytes that were asked for, but its statistics count blocks: requests are rounded up to
512 bytes, and a free block is used whole if too little of it would remain. So the blocks have to be followed. The rules
are those of DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp, with its default settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cs336_systems.measure.memory_recording import INACTIVE, Segment

ALIGNMENT = 512
"""Block sizes are multiples of this."""
SMALL_SEGMENT = 2 * 2**20
"""Size of a segment of the pool for small requests; those of the other pool are larger."""
LEAST_LARGE_REMAINDER = 2**20
"""In a large segment, a block is divided only if more than this remains."""


@dataclass(eq=False, slots=True)
class Block:
    """A block of a segment, linked to its neighbours."""

    address: int
    size: int
    small: bool
    free: bool
    previous: "Block | None" = None
    next: "Block | None" = None


class Blocks:
    """All blocks of a device, by address."""

    def __init__(self, segments: Iterable[Segment]):
        self._at: dict[int, Block] = {}
        for segment in segments:
            previous = None
            for state in segment.blocks:
                free = state.state == INACTIVE
                block = Block(state.address, state.size, segment.small, free, previous)
                if previous:
                    previous.next = block
                self._at[state.address] = previous = block

    def add_segment(self, address: int, size: int) -> None:
        """Add a new segment, which is one free block."""
        self._at[address] = Block(address, size, size == SMALL_SEGMENT, free=True)

    def remove_segment(self, address: int) -> None:
        """Remove a segment, one free block, that goes back to the driver."""
        del self._at[address]

    def allocate(self, address: int, requested: int) -> int:
        """Allocate from the free block at an address; return the bytes of the block that serves the request."""
        block = self._at[address]
        size = max(-(-requested // ALIGNMENT), 1) * ALIGNMENT
        remainder = block.size - size
        if remainder >= ALIGNMENT if block.small else remainder > LEAST_LARGE_REMAINDER:
            rest = Block(address + size, remainder, block.small, True, block, block.next)
            if block.next:
                block.next.previous = rest
            block.size, block.next = size, rest
            self._at[rest.address] = rest
        block.free = False
        return block.size

    def release(self, address: int) -> None:
        """Free a block, and merge it with its free neighbours."""
        block = self._at[address]
        block.free = True
        if block.next and block.next.free:
            self._merge(block, block.next)
        if block.previous and block.previous.free:
            self._merge(block.previous, block)

    def _merge(self, block: Block, absorbed: Block) -> None:
        del self._at[absorbed.address]
        block.size += absorbed.size
        block.next = absorbed.next
        if block.next:
            block.next.previous = block
