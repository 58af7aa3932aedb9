"""A recording of a device's memory around one step: the allocator's events, and owners of the memory.

No torch here: a recording can be replayed anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALLOCATED, INACTIVE = "active_allocated", "inactive"
"""States of a block: in use; free. Other states lie between them."""


class BlockState(NamedTuple):
    """State of an allocator's block before the step."""

    address: int
    size: int
    """Bytes that the allocator counts for it."""
    requested: int
    state: str


class Segment(NamedTuple):
    """A contiguous piece of memory from the driver, and its blocks before the step."""

    small: bool
    """Whether it is in the pool for requests of up to 1 MiB."""
    blocks: list[BlockState]


class Event(NamedTuple):
    """One event of the allocator."""

    action: str
    """PyTorch's name of the event: alloc, free_requested, free_completed, segment_alloc, segment_free, …"""
    address: int
    size: int
    """Requested bytes, or bytes of the segment."""
    microseconds: int
    source: str
    """For an allocation, the line that requested it, as file:line function; empty if no Python was running."""


class Operator(NamedTuple):
    """An operator that was called while the step ran."""

    name: str
    first: int
    end: int
    copies_weight: bool
    """Whether it converts a parameter to another dtype, as autocast does."""


class Stage(NamedTuple):
    """A stage of the step."""

    name: str
    end: int


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recording of one step."""

    segments: Sequence[Segment]
    events: Sequence[Event]
    stages: Sequence[Stage]
    operators: Sequence[Operator]
    """Operators that Python called, in order, without autograd's threads."""
    owners_before: Mapping[int, str]
    """Known categories of memory by address, before the step."""
    owners_after: Mapping[int, str]
    """Known categories of memory by address, after the step."""
    peak: int
    """The allocator's own count of the maximum bytes allocated."""
