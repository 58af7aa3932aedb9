"""What is recorded of a device's memory around one step: the allocator's events, and what says whose memory it was.

No torch here: a recording can be kept as JSON and replayed anywhere.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ALLOCATED, INACTIVE = "active_allocated", "inactive"
"""States of a block: in use; free. There are others between them."""


class BlockState(NamedTuple):
    """A block of the allocator's before the step."""

    address: int
    size: int
    """Bytes that the allocator counts for it."""
    requested: int
    """Bytes that were asked for."""
    state: str


class Segment(NamedTuple):
    """Memory that the allocator got from the driver in one piece, and how it was divided before the step."""

    small: bool
    """Whether it is in the pool for requests of up to 1 MiB."""
    blocks: list[BlockState]


class Event(NamedTuple):
    """One thing that the allocator did."""

    action: str
    """As PyTorch names it: alloc, free_requested, free_completed, segment_alloc, segment_free, …"""
    address: int
    size: int
    """Bytes asked for, or of the segment."""
    microseconds: int
    """When, by the host's clock."""
    source: str
    """Of an allocation: the line of the program that asked, as file:line function; empty if no Python was running."""


class Operator(NamedTuple):
    """An operator that was called while the step ran."""

    name: str
    first: int
    """Number of allocations before it."""
    end: int
    """Number of allocations after it."""
    copies_weight: bool
    """Whether it converts a parameter to another type, as autocast does."""


class Stage(NamedTuple):
    """A part of the step."""

    name: str
    end: int
    """Number of allocations and frees of the step until its end."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One step."""

    segments: Sequence[Segment]
    """Before the step."""
    events: Sequence[Event]
    stages: Sequence[Stage]
    operators: Sequence[Operator]
    """Those that Python called, in order; not what autograd's threads run."""
    owners_before: Mapping[int, str]
    """What the memory at an address was for before the step, as far as it is known."""
    owners_after: Mapping[int, str]
    """The same after the step."""
    peak: int
    """Most bytes allocated at one time, as the allocator counted them itself."""


def to_json(recording: Recording) -> str:
    """A recording as compact JSON."""
    return json.dumps(asdict(recording), separators=(",", ":"))


def from_json(text: str) -> Recording:
    """The recording that `to_json` wrote."""
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
