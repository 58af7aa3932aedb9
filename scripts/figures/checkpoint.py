"""Memory and time of a training step against the segment length of activation checkpointing."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.accounting.peak_memory import peak, saved_for_backward
from cs336_systems.accounting.units import MIB
from scripts.rendering.style import COLOURS, MARKERS, NotDrawn, legend, subplots
from scripts.views.closed_forms import step_of
from scripts.views.data import one_model, select
from scripts.views.units import memory_unit

NONE = 0.5
"""Position of a model without checkpointing on the logarithmic axis of segment lengths."""


def draw(table: DataFrame) -> Figure:
    """Memory next to step time; on a CPU, which counts no peak, the memory saved for backward."""
    data = one_model(table)
    if not len(select(data, metric="step")):
        raise NotDrawn("not measured")
    figure, (memory, time) = subplots(2, 3.2, sharey=False)
    draw_memory(memory, data)
    draw_time(time, data)
    for axes in (memory, time):
        axes.set_xscale("log", base=2)
        segments = sorted(set(data["segment"]))
        axes.set_xticks([segment or NONE for segment in segments], [str(segment or "none") for segment in segments])
        axes.minorticks_off()
        axes.set_xlabel("blocks per segment")
        axes.set_ylim(bottom=0)
    cell = data.iloc[0]
    figure.suptitle(f"{cell['label']}, context {cell['context']}, {cell['precision']}", fontsize="medium")
    legend([memory, time], ncols=3)
    return figure


def draw_memory(axes: Axes, data: DataFrame) -> None:
    """Measured memory as marks; the closed form as lines, a dash without checkpointing, also if memory ran out."""
    counted = len(select(data, metric="peak_memory")) > 0
    metric, quantity = ("peak_memory", "peak memory") if counted else ("saved_for_backward", "saved for backward")
    cells = data.drop_duplicates(["attention", "segment"]).sort_values("segment")
    steps = {index: step_of(cell) for index, cell in cells.iterrows()}
    closed = {index: peak(step).total if counted else saved_for_backward(step) for index, step in steps.items()}
    unit, size = memory_unit(max(closed.values()))
    for index, attention in enumerate(["plain", "flash"]):
        rows = select(data, metric=metric, attention=attention, status="ok").sort_values("segment")
        forms = select(cells, attention=attention)
        look: dict[str, Any] = {"color": COLOURS[index], "linestyle": ["-", "--"][index]}
        line, dash = forms[forms["segment"] > 0], forms[forms["segment"] == 0]
        axes.plot(
            line["segment"], [closed[row] / size for row in line.index], **look, label=f"{attention}, closed form"
        )
        axes.plot([NONE] * len(dash), [closed[row] / size for row in dash.index], **look, marker="_", markersize=14)
        axes.plot(
            [segment or NONE for segment in rows["segment"]],
            rows["mean"] * MIB / size,
            color=COLOURS[index],
            marker=MARKERS[index],
            linestyle="",
            label=f"{attention}, measured",
        )
    if counted:
        limit = data["gpu_memory"].iloc[0] / size
        axes.axhline(limit, color="black", linewidth=0.8, linestyle=":", label="the device's memory")
    axes.set_ylabel(f"{quantity} / {unit}")


def draw_time(axes: Axes, data: DataFrame) -> None:
    """Median step times, bars from the 20th to the 80th percentile."""
    for index, attention in enumerate(["plain", "flash"]):
        rows = select(data, metric="step", attention=attention).sort_values("segment")
        axes.errorbar(
            [segment or NONE for segment in rows["segment"]],
            rows["median"],
            yerr=[rows["median"] - rows["p20"], rows["p80"] - rows["median"]],
            color=COLOURS[index],
            marker=MARKERS[index],
            linestyle="",
            label=f"{attention}, measured",
        )
    axes.set_ylabel("step / ms")
