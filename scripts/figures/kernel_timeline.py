"""One step over time: when the host launched kernels, when the device ran each kind of kernel, and the stages."""

from collections.abc import Iterable
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cs336_systems.measure.intervals import merge
from cs336_systems.measure.kernel_names import CATEGORIES, categorize
from cs336_systems.measure.trace import Kernel, Trace, attribute
from cs336_systems.measure.trace_file import read_trace
from scripts.rendering.style import COLOURS, NotDrawn, annotate, subplots

MICROSECONDS = 1e3
"""Per unit of the time axis, a millisecond."""
ZOOM = 0.02
"""The part of the step in the lower panel on each side of the loss, or of the middle."""
RESOLUTION = 1 / 2000
"""Width of a launch, which has no duration, as a share of its panel."""
BINS = 200
"""Number of parts of a panel; in each, a lane's height is its busy share."""
SHADES = ["0.90", "0.97"]
"""Alternating background colours of the stages."""
EDGE = 0.05
"""A stage's name this close to a panel's edge, as a share of its width, is moved to one side."""
LANE = 0.8
"""Height of the drawing in a lane of height 1."""


def draw(trace: str) -> Figure:
    """Two panels, the whole step and the part around the loss; a lane for each host thread and kind of kernel."""
    step = read(trace)
    begin = step.stages[0].start
    end = max([step.stages[-1].end, *(kernel.end for kernel in step.kernels)])
    lanes = lanes_of(step)
    figure, panels = subplots(rows=2, height=1.2 + 0.19 * 2 * len(lanes))
    around = next((stage for stage in step.stages if stage.name == "loss"), None)
    middle = (around.start + around.end) / 2 if around else (begin + end) / 2
    half = ZOOM * (end - begin) + ((around.end - around.start) / 2 if around else 0)
    windows = [(begin, end), (max(begin, middle - half), min(end, middle + half))]
    for axes, window in zip(panels, windows, strict=True):
        draw_window(axes, step, lanes, window, begin)
    panels[0].set_title("the whole step")
    panels[1].set(title="around the loss" if around else "in the middle", xlabel="ms since the step began")
    return figure


def read(trace: str) -> Trace:
    """Read a trace at a path, which is empty if there is none.

    Raises:
        NotDrawn: it has no step.
    """
    content = read_trace(Path(trace)) if trace else {}
    if not content.get("traceEvents"):
        raise NotDrawn(f"no step was traced: {content['otherData']['note'] if content else 'not run'}")
    return attribute(content["traceEvents"])


def lanes_of(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """The intervals of each lane, by its label: launches by thread, then kernels by category and stream."""
    lanes: dict[str, list[tuple[float, float]]] = {}
    if trace.on_device:
        threads = list(dict.fromkeys(kernel.thread for kernel in trace.kernels if kernel.thread))
        for number, thread in enumerate(threads):
            label = "launches" if number == 0 else "launches by autograd" + (f" ({number})" if number > 1 else "")
            lanes[label] = [(kernel.launched, kernel.launched) for kernel in trace.kernels if kernel.thread == thread]
    streams = sorted({kernel.lane for kernel in trace.kernels})
    for stream in streams:
        for category in CATEGORIES:
            kernels = [kernel for kernel in trace.kernels if kernel.lane == stream and category_of(kernel) == category]
            if kernels:
                lanes[category if len(streams) == 1 else f"{category}, {stream}"] = [
                    (kernel.start, kernel.start + kernel.duration) for kernel in kernels
                ]
    return lanes


def category_of(kernel: Kernel) -> str:
    """The category of a kernel."""
    stage = kernel.stage.name if kernel.stage else ""
    return categorize(kernel.name, operator=kernel.operator, stage=stage, range_=kernel.range)


def draw_window(
    axes: Axes, trace: Trace, lanes: dict[str, list[tuple[float, float]]], window: tuple[float, float], origin: float
) -> None:
    """The part that falls into a window of time, µs."""
    start, end = window
    least = RESOLUTION * (end - start)
    labels = list(lanes)
    for row, label in enumerate(labels):
        heights = busy_shares(merge(visible(lanes[label], window, least)), window)
        edges = (numpy.linspace(start, end, BINS + 1) - origin) / MICROSECONDS
        colour = COLOURS[6] if label.startswith("launches") else COLOURS[0]
        axes.stairs(row + LANE / 2 - LANE * heights, edges, baseline=row + LANE / 2, fill=True, color=colour)
    for number, stage in enumerate(trace.stages):
        left, right = max(stage.start, start), min(stage.end, end)
        if left < right:
            axes.axvspan(
                (left - origin) / MICROSECONDS, (right - origin) / MICROSECONDS, color=SHADES[number % 2], zorder=0
            )
            middle = (left + right) / 2
            # The name of a narrow stage at an edge is kept inside the panel.
            share = (middle - start) / (end - start)
            side = "left" if share < EDGE else "right" if share > 1 - EDGE else "center"
            annotate(axes, ((middle - origin) / MICROSECONDS, -0.6), stage.name, ha=side)
    axes.set_xlim((start - origin) / MICROSECONDS, (end - origin) / MICROSECONDS)
    axes.set_ylim(len(labels) - 0.4, -1.3)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.grid(axis="y", visible=False)


def busy_shares(intervals: Iterable[tuple[float, float]], window: tuple[float, float]) -> NDArray[numpy.float64]:
    """The share of each of BINS equal parts of a window that disjoint intervals cover."""
    ends = numpy.array(list(intervals)).reshape(-1, 2)
    edges = numpy.linspace(*window, BINS + 1)
    covered = (numpy.clip(edges[:, None], ends[:, 0], ends[:, 1]) - ends[:, 0]).sum(axis=1)
    return numpy.diff(covered) / numpy.diff(edges)


def visible(
    intervals: Iterable[tuple[float, float]], window: tuple[float, float], least: float
) -> Iterable[tuple[float, float]]:
    """The parts of intervals that lie within a window, each wide enough to be visible."""
    for left, right in intervals:
        if right >= window[0] and left <= window[1]:
            yield max(left, window[0]), min(max(right, left + least), window[1])
