"""One step over time: when the host launched kernels, when the device ran each kind of kernel, and the stages."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cs336_systems.measure.intervals import merge
from cs336_systems.measure.kernel_names import CATEGORIES, categorize
from cs336_systems.measure.trace import Kernel, Stage, Trace
from cs336_systems.measure.trace_file import read_trace
from scripts.rendering.style import COLOURS, NotDrawn, annotate, subplots

MICROSECONDS = 1e3
"""Per unit of the time axis, a millisecond."""
RESOLUTION = 1 / 2000
"""Width of a launch, which has no duration, as a share of the step."""
BINS = 200
"""Number of parts of the step; in each, a lane's height is its busy share."""
SHADES = ["0.90", "0.97"]
"""Alternating background colours of the stages."""
EDGE = 0.05
"""A stage's name this close to a panel's edge, as a share of its width, is moved to one side."""
LANE = 0.8
"""Height of the drawing in a lane of height 1."""


def draw(trace: str) -> Figure:
    """A lane for each host thread and kind of kernel."""
    step = read(trace)
    begin = step.stages[0].start
    end = max([step.stages[-1].end, *(kernel.end for kernel in step.kernels)])
    lanes = lanes_of(step)
    figure, (axes,) = subplots(height=0.9 + 0.19 * len(lanes))
    draw_lanes(axes, step.stages, lanes, (begin, end))
    axes.set(title="the whole step", xlabel="ms since the step began")
    return figure


def read(trace: str) -> Trace:
    """Read a trace at a path, which is empty if there is none.

    Raises:
        NotDrawn: it has no step.
    """
    step = read_trace(Path(trace)) if trace else "not run"
    if isinstance(step, str):
        raise NotDrawn(f"no step was traced: {step}")
    return step


def lanes_of(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """The intervals of each lane, by its label: launches by thread, then kernels by category."""
    lanes: dict[str, list[tuple[float, float]]] = {}
    if trace.on_device:
        threads = list(dict.fromkeys(kernel.thread for kernel in trace.kernels if kernel.thread))
        for number, thread in enumerate(threads):
            label = "launches" if number == 0 else "launches by autograd" + (f" ({number})" if number > 1 else "")
            lanes[label] = [(kernel.launched, kernel.launched) for kernel in trace.kernels if kernel.thread == thread]
    for category in CATEGORIES:
        kernels = [kernel for kernel in trace.kernels if category_of(kernel) == category]
        if kernels:
            lanes[category] = [(kernel.start, kernel.start + kernel.duration) for kernel in kernels]
    return lanes


def category_of(kernel: Kernel) -> str:
    """The category of a kernel."""
    stage = kernel.stage.name if kernel.stage else ""
    return categorize(kernel.name, operator=kernel.operator, stage=stage, range_=kernel.range)


def draw_lanes(
    axes: Axes, stages: Sequence[Stage], lanes: dict[str, list[tuple[float, float]]], window: tuple[float, float]
) -> None:
    """The lanes of a step from its begin to its end, µs, and its stages behind them."""
    start, end = window
    least = RESOLUTION * (end - start)
    edges = numpy.linspace(0, end - start, BINS + 1) / MICROSECONDS
    for row, (label, intervals) in enumerate(lanes.items()):
        heights = busy_shares(merge((left, max(right, left + least)) for left, right in intervals), window)
        colour = COLOURS[6] if label.startswith("launches") else COLOURS[0]
        axes.stairs(row + LANE / 2 - LANE * heights, edges, baseline=row + LANE / 2, fill=True, color=colour)
    for number, stage in enumerate(stages):
        left, right = (stage.start - start) / MICROSECONDS, (min(stage.end, end) - start) / MICROSECONDS
        axes.axvspan(left, right, color=SHADES[number % 2], zorder=0)
        # The name of a narrow stage at an edge is kept inside the panel.
        share = (left + right) / 2 / edges[-1]
        side = "left" if share < EDGE else "right" if share > 1 - EDGE else "center"
        annotate(axes, ((left + right) / 2, -0.6), stage.name, ha=side)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(len(lanes) - 0.4, -1.3)
    axes.set_yticks(range(len(lanes)), list(lanes), fontsize=7)
    axes.grid(axis="y", visible=False)


def busy_shares(intervals: Iterable[tuple[float, float]], window: tuple[float, float]) -> NDArray[numpy.float64]:
    """The share of each of BINS equal parts of a window that disjoint intervals cover."""
    ends = numpy.array(list(intervals)).reshape(-1, 2)
    edges = numpy.linspace(*window, BINS + 1)
    covered = (numpy.clip(edges[:, None], ends[:, 0], ends[:, 1]) - ends[:, 0]).sum(axis=1)
    return numpy.diff(covered) / numpy.diff(edges)
