"""The fastest step in time: when each kind of kernel ran, on whatever stream, and for how long."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from cs336_systems.measure.intervals import covered
from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.measure.trace import Kernel, Stage, Trace
from scripts.figures.kernel_timeline import MICROSECONDS, category_of, draw_lanes, read
from scripts.rendering.style import subplots

OTHER = CATEGORIES[-1]
LEAST = 0.01
"""Share of the time in which kernels run from which on a kind has a lane of its own."""
LOSS = "cross_entropy"
"""Part of the names of the kernels that end the forward pass."""


def draw(trace: str) -> Figure:
    """One panel with a lane for each kind of kernel; a CUDA graph has no stages, so the loss separates the passes."""
    step = read(trace)
    begin, end = min(kernel.start for kernel in step.kernels), max(kernel.end for kernel in step.kernels)
    lanes = lanes_of(step.kernels)
    figure, (axes,) = subplots(height=0.9 + 0.19 * len(lanes))
    draw_lanes(axes, passes(step, begin, end), lanes, (begin, end))
    idle = end - begin - covered((kernel.start, kernel.end) for kernel in step.kernels)
    axes.set_xlabel(f"ms since the first kernel began; idle for {idle / MICROSECONDS:.1f} ms")
    return figure


def lanes_of(kernels: Sequence[Kernel]) -> dict[str, list[tuple[float, float]]]:
    """The intervals of each kind of kernel, those that take little together, by a label with its time."""
    ran: dict[str, list[tuple[float, float]]] = {category: [] for category in CATEGORIES}
    for kernel in kernels:
        ran[category_of(kernel)].append((kernel.start, kernel.end))
    least = LEAST * covered((kernel.start, kernel.end) for kernel in kernels)
    for category, intervals in ran.items():
        if category != OTHER and covered(intervals) < least:
            ran[OTHER] += ran[category]
            ran[category] = []
    return {f"{name}: {covered(each) / MICROSECONDS:.1f} ms": each for name, each in ran.items() if each}


def passes(step: Trace, begin: float, end: float) -> list[Stage]:
    """Forward pass, loss and backward pass, by when the loss was computed; nothing where no kernel is the loss's."""
    loss = [kernel for kernel in step.kernels if LOSS in kernel.name]
    if not loss:
        return []
    edges = [begin, min(kernel.start for kernel in loss), max(kernel.end for kernel in loss), end]
    names = ("forward", "loss", "backward")
    return [Stage(name=name, step=0, start=a, end=b) for name, a, b in zip(names, edges, edges[1:], strict=False)]
