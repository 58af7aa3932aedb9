"""The kernels of a block's forward pass against the GPU's peak rate and its memory's bandwidth."""

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.rendering.style import COLOURS, NotDrawn, annotate, legend, log_scale, subplots
from scripts.views.data import PRECISIONS, measured_gpu, select
from scripts.views.kernels import profiled_closely
from scripts.views.roofline import WHERE, block_kernels

MARKERS = dict(zip(WHERE, ["o", "s", "D", "^", "v", "P", "X", "<"], strict=True))
REACH = (0.05, 3000)
"""Range of FLOPs per byte in the figure."""


def draw(data: DataFrame) -> Figure:
    """One panel per precision: rate against FLOPs per byte, with the roofs, and one mark for each kind of kernel."""
    gpu, close = gpu_of(measured_gpu({"": data})), profiled_closely(data)
    kernels = block_kernels(close)
    if gpu is None or not len(kernels):
        raise NotDrawn("no GPU with known peak rates was profiled, so there is no roofline")
    row = close.iloc[0]
    precisions = [name for name in PRECISIONS if name in set(kernels["precision"])]
    figure, panels = subplots(len(precisions), height=3.1)
    for axes, precision in zip(panels, precisions, strict=True):
        draw_roof(axes, gpu, precision)
        for place, (kind, marker) in enumerate(MARKERS.items()):
            own = select(kernels, precision=precision, kind=kind)
            axes.plot(
                own["intensity"],
                own["flops"] / 1e12,
                linestyle="",
                marker=marker,
                markersize=6,
                color=COLOURS[place],
                label=kind,
            )
        log_scale(axes.xaxis)
        log_scale(axes.yaxis)
        axes.margins(y=0.12)
        axes.set(title=f"{row['label']}, context {row['context']}, {precision}", xlabel="FLOPs per byte")
    panels[0].set_ylabel("TFLOP/s")
    legend(panels, ncols=4, fontsize=8)
    return figure


def draw_roof(axes: Axes, gpu: Gpu, precision: str) -> None:
    """The bandwidth times the intensity, up to the peak rate."""
    peak = gpu.flops(precision)
    intensity = numpy.array([REACH[0], peak / gpu.bandwidth, REACH[1]])
    axes.plot(intensity, numpy.minimum(intensity * gpu.bandwidth, peak) / 1e12, color="black", linewidth=1)
    start = 60 * REACH[0]
    right = {"ha": "right", "fontsize": 9}
    annotate(axes, (REACH[1], peak / 1e12), f"{peak / 1e12:g} TFLOP/s", **right)
    annotate(axes, (start, start * gpu.bandwidth / 1e12), f"{gpu.bandwidth / 1e12:g} TB/s", xytext=(-6, 0), **right)
