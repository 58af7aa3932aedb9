"""Time and bus bandwidth of an all-reduce against the size of its message."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import geomspace
from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.style import NotDrawn, legend, log_scale, look_of_line, subplots
from scripts.views.communication import BACKENDS, MB, Line, all_reduce_table, lines
from scripts.views.data import measured_gpu, select

STYLES = {"nccl": "-", "gloo": "--"}


def draw(data: DataFrame) -> Figure:
    """One panel of time, and one of bandwidth for each backend; one line per backend and number of processes."""
    cells = all_reduce_table(data)
    if not len(cells):
        raise NotDrawn("not measured")
    backends = [backend for backend in BACKENDS if backend in set(cells["backend"])]
    figure, (time, *panels) = subplots(1 + len(backends), height=3.0, sharey=False)
    fits = lines(cells)
    numbers = sorted(set(cells["processes"]))
    for backend, panel in zip(backends, panels, strict=True):
        for index, processes in enumerate(numbers):
            rows = select(cells, backend=backend, processes=processes)
            if len(rows):
                look = marked(len(numbers) * backends.index(backend) + index, backend, processes)
                draw_time(time, rows, fits.get((backend, processes)), look)
                panel.plot(rows["megabytes"], rows["bus_bandwidth"], **look)
        if backend == "nccl" and (gpu := gpu_of(measured_gpu({"": data}))) and gpu.link:
            panel.axhline(gpu.link / 1e9, color="black", linewidth=0.8, linestyle=":", label="link, per direction")
        panel.margins(y=0.08)
        panel.set_ylim(bottom=0)
        panel.set(title=f"bus bandwidth, {BACKENDS[backend]}", ylabel="GB/s")
    log_scale(time.yaxis)
    time.set(title="time", ylabel="ms")
    sizes = sorted(set(cells["megabytes"]))
    for axes in (time, *panels):
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("message / MB")
    legend([time, *panels], ncols=3)
    return figure


def draw_time(axes: Axes, rows: DataFrame, line: Line | None, look: dict[str, Any]) -> None:
    """Measured times as marks, and the line through them."""
    errors = [rows["median"] - rows["p20"], rows["p80"] - rows["median"]]
    axes.errorbar(rows["megabytes"], rows["median"], yerr=errors, **look | ({"linestyle": ""} if line else {}))
    if line:
        sizes = geomspace(rows["megabytes"].min(), rows["megabytes"].max())
        times = [1e3 * line.seconds(MB * megabytes) for megabytes in sizes]
        axes.plot(sizes, times, color=look["color"], linestyle=look["linestyle"], linewidth=1)


def marked(index: int, backend: str, processes: int) -> dict[str, Any]:
    """The name and the look of a line."""
    return look_of_line(index) | {"label": f"{BACKENDS[backend]}, n = {processes}", "linestyle": STYLES[backend]}
