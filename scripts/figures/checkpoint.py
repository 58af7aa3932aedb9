"""Memory and time of a training step against the segment length of activation checkpointing."""

from matplotlib import pyplot
from matplotlib.axes import Axes
from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from scripts.closed_forms import one_model, step_of
from scripts.data import load_at_one_setting, select
from scripts.memory import GIB
from scripts.style import COLOURS, MARKERS, WIDTH, save, save_note

NONE = 0.5
"""Where a model without checkpointing is on the logarithmic axis of segment lengths."""


def draw(table: str, output: str) -> None:
    """Memory next to step time; on a CPU, which counts no peak, what is saved for backward."""
    data = one_model(load_at_one_setting("checkpointing", table))
    if not len(select(data, metric="step")):
        save_note("not measured", output)
        return
    figure, (memory, time) = pyplot.subplots(1, 2, figsize=(WIDTH, 3.2))
    draw_memory(memory, data)
    draw_time(time, data)
    for axes in (memory, time):
        axes.set_xscale("log", base=2)
        segments = sorted(set(data["segment"]))
        axes.set_xticks([segment or NONE for segment in segments], [str(segment or "none") for segment in segments])
        axes.minorticks_off()
        axes.set_xlabel("blocks per segment")
        axes.set_ylim(bottom=0)
    handles, names = memory.get_legend_handles_labels()
    figure.legend(handles, names, ncols=3, loc="outside lower center")
    save(figure, output)


def draw_memory(axes: Axes, data: DataFrame) -> None:
    """Measured memory as marks and the closed form as lines, which go on where memory ran out."""
    counted = len(select(data, metric="peak_memory", status="ok")) > 0
    metric, title = ("peak_memory", "peak memory") if counted else ("saved_for_backward", "saved for backward")
    cells = data.drop_duplicates(["attention", "segment"]).sort_values("segment")
    expected = {index: step_of(cell) for index, cell in cells.iterrows()}
    closed = {index: step.peak if counted else step.saved_for_backward for index, step in expected.items()}
    size, unit = (GIB, "GiB") if max(closed.values()) > 4 * GIB else (MIB, "MiB")
    for index, attention in enumerate(["plain", "flash"]):
        rows = select(data, metric=metric, attention=attention, status="ok").sort_values("segment")
        forms = select(cells, attention=attention)
        axes.plot(
            [segment or NONE for segment in forms["segment"]],
            [closed[row] / size for row in forms.index],
            color=COLOURS[index],
            linestyle=["-", "--"][index],
            label=f"{attention}, closed form" if len(forms) else None,
        )
        axes.plot(
            [segment or NONE for segment in rows["segment"]],
            rows["mean"] * MIB / size,
            color=COLOURS[index],
            marker=MARKERS[index],
            linestyle="",
            label=f"{attention}, measured" if len(rows) else None,
        )
    if counted:
        limit = data["gpu_memory"].iloc[0] / size
        axes.axhline(limit, color="black", linewidth=0.8, linestyle=":", label="the device's memory")
    axes.set_ylabel(f"{title} / {unit}")


def draw_time(axes: Axes, data: DataFrame) -> None:
    """Median step times, bars from the 20th to the 80th percentile."""
    for index, attention in enumerate(["plain", "flash"]):
        rows = select(data, metric="step", attention=attention, status="ok").sort_values("segment")
        axes.errorbar(
            [segment or NONE for segment in rows["segment"]],
            rows["median"],
            yerr=[rows["median"] - rows["p20"], rows["p80"] - rows["median"]],
            color=COLOURS[index],
            marker=MARKERS[index],
            linestyle=["-", "--"][index],
        )
    axes.set_ylabel("step / ms")
