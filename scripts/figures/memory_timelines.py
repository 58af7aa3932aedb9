"""Memory in use during a step, by what it is for: a forward pass without and with a graph, and a training step."""

from typing import Any

import numpy
from matplotlib import pyplot
from matplotlib.axes import Axes
from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.measure.measurement import parse_samples
from scripts.data import load_at_one_setting, select
from scripts.memory import GIB, LOOKS, MODES, SHOWN, compared_context, peak_gib, profiled, shown_category
from scripts.style import WIDTH, save, save_note

LEAST_WIDTH = 0.05
"""Share of a panel that a stage takes even if nothing is allocated or freed in it."""


def draw(table: str, output: str) -> None:
    """Stacked areas over allocations and frees in order; stages are separated, the peak is marked."""
    rows = select(profiled(load_at_one_setting("memory_profile", table)), precision="fp32")
    context = compared_context(rows)
    if context is None:
        save_note("no memory was followed on this machine", output)
        return
    figure, panels = pyplot.subplots(1, 3, figsize=(WIDTH, 3.4), sharey=True, width_ratios=[1, 1.3, 2.2])
    for axes, (mode, title) in zip(panels, MODES.items(), strict=True):
        draw_panel(axes, select(rows, context=context, mode=mode))
        axes.set_title(title)
    panels[0].set_ylabel("memory in use / GiB")
    label = rows["label"].iloc[0]
    figure.supxlabel(f"allocations and frees, in order ({label}, fp32, context {context})", fontsize=8)
    handles, names = panels[-1].get_legend_handles_labels()
    figure.legend(handles, names, ncols=4, loc="outside lower center", fontsize=8)
    save(figure, output)


def draw_panel(axes: Axes, rows: DataFrame) -> None:
    """One step."""
    events = {row["stage"]: row["mean"] for _, row in select(rows, metric="stage_events").iterrows()}
    total = sum(events.values())
    left = 0.0
    xs: list[Any] = []
    levels: dict[str, list[Any]] = {name: [] for name in SHOWN}
    highest = peak_gib(rows) or 0.0
    for stage, count in events.items():
        width = max(count, LEAST_WIDTH * total)
        points = stage_points(select(rows, metric="active", stage=stage))
        number = len(points[SHOWN[0]])
        xs.append(left + width * numpy.linspace(0, 1, max(number, 2)))
        for name in SHOWN:
            levels[name].append(points[name] if number > 1 else numpy.repeat(points[name], 2))
        if left:
            axes.axvline(left, color="black", linewidth=0.6, linestyle=(0, (4, 2)))
        narrow = width < 0.2 * total
        axes.text(
            left + width / 2,
            1.02 * highest if not narrow else 0.02 * highest,
            stage,
            ha="center",
            va="bottom",
            rotation=90 if narrow else 0,
            fontsize=7,
        )
        left += width
    x = numpy.concatenate(xs)
    stacked = [numpy.concatenate(levels[name]) for name in SHOWN]
    for name, lower, upper in zip(
        SHOWN, [0 * x, *numpy.cumsum(stacked, axis=0)], numpy.cumsum(stacked, axis=0), strict=False
    ):
        axes.fill_between(x, lower, upper, label=name, edgecolor="white", linewidth=0.3, **LOOKS[name])
    top = numpy.sum(stacked, axis=0)
    peak = int(numpy.argmax(top))
    axes.plot(x[peak], top[peak], marker="v", color="black", markersize=6, clip_on=False)
    axes.set_xlim(0, left)
    axes.set_xticks([])


def stage_points(rows: DataFrame) -> dict[str, Any]:
    """The stage's kept points, GiB, by category of the figure."""
    number = int(rows["n"].max())
    points = {name: numpy.zeros(number) for name in SHOWN}
    for _, row in rows.iterrows():
        samples = parse_samples(row["samples"]) if row["samples"] else [row["mean"]]
        points[shown_category(row["category"])] += numpy.array(samples) * MIB / GIB
    return points
