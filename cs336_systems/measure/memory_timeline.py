"""Replay a recording of the allocator as a timeline of memory by category. No torch here."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cs336_systems.accounting.caching_allocator import Blocks
from cs336_systems.measure.memory_recording import ALLOCATED, INACTIVE, Recording, Segment

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
WEIGHT_COPIES = "bf16 copies of weights"
ACTIVATIONS, TEMPORARIES = "saved activations", "temporaries"
WORKSPACES, OTHER_TENSORS = "cuBLAS workspaces", "inputs, outputs, buffers"
ROUNDING, UNCLASSIFIED = "allocator's rounding", "unclassified"
CATEGORIES = (
    PARAMETERS,
    OPTIMIZER_STATE,
    GRADIENTS,
    WEIGHT_COPIES,
    ACTIVATIONS,
    TEMPORARIES,
    WORKSPACES,
    OTHER_TENSORS,
    ROUNDING,
    UNCLASSIFIED,
)
"""Categories of memory. The requested bytes of a tensor's block have the tensor's category, the rest is the allocator's
rounding."""
FORWARD, LOSS, BACKWARD, OPTIMIZER = "forward", "loss", "backward", "optimizer"
POINTS = 256
"""Approximate number of points kept of a timeline."""
FEWEST_POINTS = 8
"""Minimum number of points of a stage, if it has as many events."""


@dataclass(eq=False, kw_only=True, slots=True)
class Allocation:
    """One tensor's memory, from its allocation to its release."""

    address: int
    requested: int
    size: int
    stage: str = ""
    """The stage in which it was allocated; empty if before the step."""
    freed: str = ""
    """The stage in which it was freed; empty if not in this step."""
    milliseconds: float | None = None
    """Its lifetime on the host's clock; None unless it was allocated and freed in this step."""
    source: str = ""
    operator: str = ""
    """The operator that allocated it; empty if before the step, and in autograd's threads."""
    copies_weight: bool = False
    category: str = UNCLASSIFIED


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All allocations of a step, and their sums over time. A position is a number of allocations and frees."""

    before: Sequence[Allocation]
    changes: Sequence[tuple[Allocation, bool]]
    """Allocations (True) and frees (False), in order."""
    stages: Sequence[tuple[str, int, int]]
    """Name, first and last position; the first stage includes position 0, the state before the step."""

    def levels(self) -> Iterator[dict[str, int]]:
        """Bytes in use by category at each position. Yields the same dictionary each time."""
        level = dict.fromkeys(CATEGORIES, 0)
        for allocation in self.before:
            _add(level, allocation, 1)
        yield level
        for allocation, allocated in self.changes:
            _add(level, allocation, 1 if allocated else -1)
            yield level

    def totals(self) -> list[int]:
        """Bytes in use at each position, as the allocator counts them."""
        sizes = (allocation.size if allocated else -allocation.size for allocation, allocated in self.changes)
        return list(itertools.accumulate(sizes, initial=sum(allocation.size for allocation in self.before)))

    def levels_at(self, positions: Sequence[int]) -> list[dict[str, int]]:
        """Bytes in use by category at the given positions, in increasing order."""
        wanted = set(positions)
        at = {position: dict(level) for position, level in enumerate(self.levels()) if position in wanted}
        return [at[position] for position in positions]

    def made(self) -> list[Allocation]:
        """Allocations made during the step."""
        return [allocation for allocation, allocated in self.changes if allocated]


def _add(level: dict[str, int], allocation: Allocation, sign: int) -> None:
    level[allocation.category] += sign * allocation.requested
    level[ROUNDING] += sign * (allocation.size - allocation.requested)


def blocks_of(segments: Iterable[Segment]) -> Blocks:
    """The blocks at the beginning of a recording."""
    blocks = Blocks()
    for segment in segments:
        before = None
        for block in segment.blocks:
            before = blocks.add_block(block.address, block.size, segment.small, block.state == INACTIVE, before)
    return blocks


def replay(recording: Recording) -> Timeline:
    """Replay allocations and frees, with categories.

    A ValueError means that there are fewer events than the allocator counted, so the recording is incomplete.
    """
    blocks = blocks_of(recording.segments)
    alive = {
        block.address: Allocation(address=block.address, requested=block.requested, size=block.size)
        for segment in recording.segments
        for block in segment.blocks
        if block.state == ALLOCATED
    }
    before = list(alive.values())
    changes: list[tuple[Allocation, bool]] = []
    born: dict[Allocation, int] = {}
    names = _stage_of_position(recording)
    for event in recording.events:
        # Stages are counted in allocations and frees, so other events belong to none.
        stage = next(names) if event.action in ("alloc", "free_requested") else ""
        match event.action:
            case "alloc":
                size = blocks.use(event.address, event.size)
                allocation = Allocation(
                    address=event.address, requested=event.size, size=size, stage=stage, source=event.source
                )
                alive[event.address] = allocation
                born[allocation] = event.microseconds
                changes.append((allocation, True))
            case "free_requested":
                # The allocator counts a block until here, although another stream may prevent its reuse.
                allocation = alive.pop(event.address)
                allocation.freed = stage
                if allocation in born:
                    allocation.milliseconds = (event.microseconds - born[allocation]) / 1e3
                changes.append((allocation, False))
            case "free_completed":
                blocks.free(event.address)
            case "segment_alloc":
                blocks.add_segment(event.address, event.size)
            case "segment_free":
                blocks.remove_segment(event.address)
    if len(changes) != recording.stages[-1].end:
        raise ValueError(f"{len(changes)} allocations and frees were recorded of {recording.stages[-1].end}")
    timeline = Timeline(before=before, changes=changes, stages=_spans(recording))
    _name_operators(recording, timeline.made())
    _classify(recording, timeline, alive)
    return timeline


def _stage_of_position(recording: Recording) -> Iterator[str]:
    """The stage of each allocation or free, in order; empty after the last stage."""
    start = 0
    for stage in recording.stages:
        yield from itertools.repeat(stage.name, stage.end - start)
        start = stage.end
    yield from itertools.repeat("")


def _spans(recording: Recording) -> list[tuple[str, int, int]]:
    ends = [stage.end for stage in recording.stages]
    firsts = [0, *(end + 1 for end in ends[:-1])]
    return [(stage.name, first, stage.end) for stage, first in zip(recording.stages, firsts, strict=True)]


def _name_operators(recording: Recording, made: Sequence[Allocation]) -> None:
    for operator in recording.operators:
        for allocation in made[operator.first : operator.end]:
            allocation.operator, allocation.copies_weight = operator.name, operator.copies_weight


def _classify(recording: Recording, timeline: Timeline, alive: dict[int, Allocation]) -> None:
    """Assign a category to each allocation; `alive` are allocations in use after the step.

    Live tensors determine parameters, gradients, optimizer state and so on. Among the rest, the result of a weight's
    conversion is a copy of the weight. An allocation made before the backward pass and still in use when it begins (or,
    without a backward pass, when the step ends) is kept by the graph, so it was saved for backward. An allocation that
    did not survive the step is temporary.
    """
    for allocation in timeline.before:
        allocation.category = recording.owners_before.get(allocation.address, UNCLASSIFIED)
    has_backward = any(name == BACKWARD for name, _, _ in timeline.stages)
    for allocation in timeline.made():
        survives = allocation is alive.get(allocation.address)
        if survives and allocation.address in recording.owners_after:
            allocation.category = recording.owners_after[allocation.address]
        elif allocation.copies_weight:
            allocation.category = WEIGHT_COPIES
        elif allocation.stage in (FORWARD, LOSS) and (
            allocation.freed in (BACKWARD, OPTIMIZER) if has_backward else survives
        ):
            allocation.category = ACTIVATIONS
        elif not survives:
            allocation.category = TEMPORARIES


def sample_positions(timeline: Timeline) -> dict[str, list[int]]:
    """Choose the positions of each stage at which the timeline is kept: the largest total in each of equal slices.

    So they include the peak. A stage without allocations or frees has one position, at its end.
    """
    totals = timeline.totals()
    kept: dict[str, list[int]] = {}
    for name, first, last in timeline.stages:
        positions = range(min(first, last), last + 1)
        points = max(FEWEST_POINTS, round(POINTS * len(positions) / len(totals)))
        cuts = [len(positions) * index // points for index in range(points + 1)]
        slices = [positions[start:end] for start, end in itertools.pairwise(cuts) if end > start]
        kept[name] = [max(part, key=totals.__getitem__) for part in slices]
    return kept


def largest_groups(timeline: Timeline, count: int) -> list[list[Allocation]]:
    """Group the step's largest allocations by size, origin and fate, largest first."""

    def alike(allocation: Allocation) -> tuple[int, str, str, str, str, str]:
        return (
            -allocation.requested,
            allocation.stage,
            allocation.source,
            allocation.operator,
            allocation.category,
            allocation.freed,
        )

    groups = [list(group) for _, group in itertools.groupby(sorted(timeline.made(), key=alike), key=alike)]
    # Groups of equal size: largest total first.
    groups.sort(key=lambda group: (-group[0].requested, -len(group)))
    return groups[:count]
