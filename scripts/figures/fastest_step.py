"""The fastest step in time: when each kind of kernel ran, on whatever stream, and for how long."""

from dataclasses import replace

from cs336_systems.measure.intervals import covered
from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.measure.trace import Kernel, Stage, Trace
from scripts.figures.kernel_timeline import MICROSECONDS, category_of, draw_window, read
from scripts.rendering.style import save, subplots

LOSS = "cross_entropy"
"""In the names of the kernels that end the forward pass."""


def draw(trace: str, output: str) -> None:
    """One panel with a lane for each kind of kernel; a CUDA graph has no stages, so the loss separates the passes."""
    step = read(trace)
    begin, end = min(kernel.start for kernel in step.kernels), max(kernel.end for kernel in step.kernels)
    lanes = lanes_of(step.kernels)
    figure, (axes,) = subplots(height=0.9 + 0.19 * len(lanes))
    draw_window(axes, replace(step, stages=passes(step, begin, end)), lanes, (begin, end), begin)
    idle = end - begin - covered((kernel.start, kernel.end) for kernel in step.kernels)
    axes.set_xlabel(f"ms since the first kernel began; for {idle / MICROSECONDS:.1f} ms nothing runs")
    save(figure, output)


def lanes_of(kernels: list[Kernel]) -> dict[str, list[tuple[float, float]]]:
    """The intervals of each kind of kernel that ran, by its label, which has its time."""
    lanes = {}
    for category in CATEGORIES:
        ran = [(kernel.start, kernel.end) for kernel in kernels if category_of(kernel) == category]
        if ran:
            lanes[f"{category}: {covered(ran) / MICROSECONDS:.1f} ms"] = ran
    return lanes


def passes(step: Trace, begin: float, end: float) -> list[Stage]:
    """Forward pass, loss and backward pass, by when the loss was computed; nothing where no kernel is the loss's."""
    loss = [kernel for kernel in step.kernels if LOSS in kernel.name]
    if not loss:
        return []
    edges = [begin, min(kernel.start for kernel in loss), max(kernel.end for kernel in loss), end]
    names = ("forward", "loss", "backward")
    return [Stage(name=name, step=0, start=a, end=b) for name, a, b in zip(names, edges, edges[1:], strict=False)]
