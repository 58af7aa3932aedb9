"""Attribute kernels to the parts of a training step that launched them, from a trace of PyTorch's profiler.

A trace is Chrome's trace event format: events on host threads and on the device's streams. No torch here.
"""

import bisect
import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_systems.record.measurement import STAGES

GRADIENT_ACCUMULATION = "gradient accumulation"
"""The range of nodes that store a parameter's gradient, which belong to no module's forward pass."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
ENGINE = "autograd::engine::evaluate_function: "
"""Prefix of the event around the work of one autograd node."""

WHOLE = "step"
"""The range of a step without stages, as one that is replayed from a CUDA graph."""

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of one step, on the host's clock."""

    name: str
    step: int
    """Index of the recorded step, from 0."""
    start: float
    """When the host entered it, µs."""
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One execution of a kernel, a copy or a memset; in a CPU's trace, of an operator."""

    name: str
    start: float
    """When it began, µs, on the host's clock."""
    end: float
    duration: float
    """Its duration, µs; for an operator, excluding the operators it called."""
    lane: str
    thread: str
    """The host's thread that launched it; empty if unknown."""
    launched: float
    """When the host launched it, µs."""
    stage: Stage | None
    """The stage that launched it; None if unknown."""
    range: str
    """The module, named range or stage that launched it, or whose forward pass made the autograd node that did; empty
    if unknown."""
    operator: str
    """The innermost operator that launched it; empty if none did."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Stages and kernels of the recorded steps."""

    stages: Sequence[Stage]
    kernels: Sequence[Kernel]
    on_device: bool
    """Whether the kernels ran on a GPU; otherwise they are operators."""


@dataclass(slots=True, eq=False)
class _Span:
    """An event on a host thread, with links to the enclosing events."""

    name: str
    is_range: bool
    thread: Any
    start: float
    end: float
    parent: "_Span | None" = None
    forward: "_Span | None" = None
    """For an autograd node, the operator of the forward pass that made it."""
    within: float = 0.0
    """Time of the events directly within it, µs."""


def read_file(path: Path) -> dict[str, Any]:
    """Read a trace file, compressed or not."""
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a trace file."""
    return read_file(path)["traceEvents"]


def attribute(events: Iterable[Event]) -> Trace:
    """Attribute everything that ran to the stage and the range that launched it.

    A launch belongs to the stage during which the host made it, on any thread: a stage ends when its work is done. It
    belongs to the nearest enclosing range on its thread. An autograd node stands for the forward operator that made it,
    so its work belongs to that operator's range.
    """
    by_category: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_category[event.get("cat", "")].append(event)
    ranges = [_span(event) for event in by_category["user_annotation"] if _is_own(event["name"])]
    operators = [_span(event) for event in by_category["cpu_op"]]
    executed = [event for category in ON_DEVICE for event in by_category[category]]
    launches = {
        event["args"]["correlation"]: _span(event)
        for category in LAUNCHES
        for event in by_category[category]
        if "correlation" in event.get("args", ())
    }
    numbers = (event["args"].get("correlation") for event in executed)
    # Each once: a CUDA graph's launch has all its kernels.
    launching = dict.fromkeys(launches[number] for number in numbers if number in launches)
    _nest(itertools.chain(ranges, operators, launching))
    _link(operators, by_category["fwdbwd"])
    stages = _stages(ranges)
    unordered = _on_device(executed, launches, stages) if executed else _operators(operators, stages)
    kernels = sorted(unordered, key=lambda kernel: kernel.launched)
    return Trace(stages=stages, kernels=kernels, on_device=bool(executed))


def _is_own(annotation: str) -> bool:
    """Whether an annotation is one of our ranges: PyTorch's own look like Optimizer.step#AdamW.step."""
    return "#" not in annotation and ":" not in annotation


def _span(event: Event) -> _Span:
    return _Span(
        name=event["name"],
        is_range=event["cat"] == "user_annotation",
        thread=event["tid"],
        start=event["ts"],
        end=event["ts"] + event.get("dur", 0.0),
    )


def _nest(spans: Iterable[_Span]) -> None:
    open_spans: dict[Any, list[_Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        stack = open_spans[span.thread]
        while stack and stack[-1].end <= span.start:
            stack.pop()
        if stack:
            span.parent = stack[-1]
            span.parent.within += span.end - span.start
        stack.append(span)


def _link(operators: Iterable[_Span], flows: Iterable[Event]) -> None:
    """Link each autograd node to the operator that made it, along the profiler's arrows.

    It draws one from the last operator on the forward thread with the node's sequence number to the node.
    """
    at = {(span.thread, span.start): span for span in operators}
    ends = {(flow["id"], flow["ph"]): (flow["tid"], flow["ts"]) for flow in flows}
    for (number, end), place in ends.items():
        if end == "f" and place in at and (origin := ends.get((number, "s"))) in at:
            node = at[place]
            node.forward = at[origin]
            if node.parent and node.parent.name.startswith(ENGINE):  # which also sums the gradients that it made
                node.parent.forward = at[origin]


def _stages(ranges: Iterable[_Span]) -> list[Stage]:
    """The outermost ranges named like stages; a repeated stage begins the next step."""
    stages: list[Stage] = []
    step, seen = 0, set[str]()
    for span in sorted(ranges, key=lambda span: span.start):
        if span.name not in (*STAGES, WHOLE) or (stages and span.start < stages[-1].end):
            continue
        if span.name in seen:
            step, seen = step + 1, set()
        seen.add(span.name)
        stages.append(Stage(name=span.name, step=step, start=span.start, end=span.end))
    return stages


def _stage_at(time: float, stages: Sequence[Stage], starts: Sequence[float]) -> Stage | None:
    index = bisect.bisect_right(starts, time) - 1
    return stages[index] if index >= 0 and time <= stages[index].end else None


def _range_of(span: _Span | None) -> str:
    while span is not None:
        if span.is_range:
            return span.name
        if span.name.startswith(ENGINE) and span.name.endswith("AccumulateGrad"):
            return GRADIENT_ACCUMULATION
        span = span.forward or span.parent
    return ""


def _on_device(executed: Iterable[Event], launches: Mapping[int, _Span], stages: Sequence[Stage]) -> Iterator[Kernel]:
    starts = [stage.start for stage in stages]
    for event in executed:
        launch = launches.get(event["args"].get("correlation"))
        launched = launch.start if launch else event["ts"]
        yield Kernel(
            name=event["name"],
            start=event["ts"],
            end=event["ts"] + event["dur"],
            duration=event["dur"],
            lane=f"stream {event['args']['stream']}",
            thread=f"thread {launch.thread}" if launch else "",
            launched=launched,
            stage=_stage_at(launched, stages, starts) if launch else None,
            range=_range_of(launch),
            operator=launch.parent.name if launch and launch.parent and not launch.parent.is_range else "",
        )


def _operators(operators: Iterable[_Span], stages: Sequence[Stage]) -> Iterator[Kernel]:
    starts = [stage.start for stage in stages]
    for span in operators:
        yield Kernel(
            name=span.name.removeprefix(ENGINE),
            start=span.start,
            end=span.end,
            duration=max(0.0, span.end - span.start - span.within),
            lane=f"thread {span.thread}",
            thread=f"thread {span.thread}",
            launched=span.start,
            stage=_stage_at(span.start, stages, starts),
            range=_range_of(span),
            operator=span.name,
        )
