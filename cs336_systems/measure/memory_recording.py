"""A recording of a device's memory around one step: the allocator's events, and owners of the memory.

No torch here: a recording can be kept as JSON and replayed anywhere.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ALLOCATED, INACTIVE = "active_allocated", "inactive"
"""States of a block: in use; free. There are others between them."""


class BlockState(NamedTuple):
    """State of an allocator's block before the step."""

    address: int
    size: int
    """Bytes that the allocator counts for it."""
    requested: int
    """Bytes that were asked for."""
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
    """Bytes asked for, or of the segment."""
    microseconds: int
    """Time of the event by the host's clock."""
    source: str
    """For an allocation, the line that requested it, as file:line function; empty if no Python was running."""


class Operator(NamedTuple):
    """An operator that was called while the step ran."""

    name: str
    first: int
    """Number of allocations before it."""
    end: int
    """Number of allocations after it."""
    copies_weight: bool
    """Whether it converts a parameter to another dtype, as autocast does."""


class Stage(NamedTuple):
    """A stage of the step."""

    name: str
    end: int
    """Number of allocations and frees of the step until its end."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recording of one step."""

    segments: Sequence[Segment]
    """Segments before the step."""
    events: Sequence[Event]
    stages: Sequence[Stage]
    operators: Sequence[Operator]
    """Operators that Python called, in order; without those of autograd's threads."""
    owners_before: Mapping[int, str]
    """Known categories of memory by address, before the step."""
    owners_after: Mapping[int, str]
    """Known categories of memory by address, after the step."""
    peak: int
    """The most bytes allocated at one time, by the allocator's own count."""


def to_json(recording: Recording) -> str:
    """Serialize a recording as compact JSON."""
    return json.dumps(asdict(recording), separators=(",", ":"))


def from_json(text: str) -> Recording:
    """Parse a recording that `to_json` wrote."""
    content: dict[str, Any] = json.loads(text)
    return Recording(
        segments=[Segment(small, [BlockState(*block) for block in blocks]) for small, blocks in content["segments"]],
        events=[Event(*event) for event in content["events"]],
        stages=[Stage(*stage) for stage in content["stages"]],
        operators=[Operator(*operator) for operator in content["operators"]],
        owners_before={int(address): owner for address, owner in content["owners_before"].items()},
        owners_after={int(address): owner for address, owner in content["owners_after"].items()},
        peak=content["peak"],
    )
