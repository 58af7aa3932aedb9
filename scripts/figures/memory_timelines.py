"""Memory in use during a step, by purpose: a forward pass without and with a graph, and a training step."""

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from scripts.rendering.style import NotDrawn, legend, looks, subplots
from scripts.views.data import largest_model, samples, select
from scripts.views.memory import FOLLOWED, HATCHES, compared_context, peak_gib, shown_category
from scripts.views.units import GIB

Levels = NDArray[numpy.float64]

LOOKS = looks(HATCHES)

LEAST_WIDTH = 0.1
"""Share of a panel that a stage takes even if nothing is allocated or freed in it."""
NARROW = 0.2
"""The name of a stage with less than this share of its panel is written vertically."""


def draw(table: DataFrame) -> Figure:
    """Stacked areas over the allocations and frees in their order; stages are separated, the peak is marked."""
    rows = select(largest_model(table), attention="plain")
    context = compared_context(rows)
    if context is None:
        raise NotDrawn("no memory was recorded on this machine")
    figure, panels = subplots(len(FOLLOWED), 3.6, width_ratios=[1, 1.3, 2.2])
    cells = {mode: select(rows, context=context, mode=mode, precision="fp32") for mode in FOLLOWED}
    occurring = {shown_category(category) for cell in cells.values() for category in cell["category"] if category}
    shown = [name for name in LOOKS if name in occurring]
    highest = max(peak_gib(cell) or 0 for cell in cells.values())
    for axes, (mode, cell) in zip(panels, cells.items(), strict=True):
        draw_step(axes, cell, shown, margin=0.03 * highest)
        axes.set_title(f"{FOLLOWED[mode]}\npeak {peak_gib(cell):.1f} GiB")
    panels[0].set_ylim(0, 1.3 * highest)
    panels[0].set_ylabel("memory in use / GiB")
    panels[1].set_xlabel(f"allocations and frees, in order\n({rows['label'].iloc[0]}, fp32, context {context})")
    legend(panels, ncols=4, fontsize=8)
    return figure


def draw_step(axes: Axes, cell: DataFrame, shown: list[str], margin: float) -> None:
    """One step's stages, as wide as their numbers of allocations and frees."""
    events = {row["stage"]: row["mean"] for _, row in select(cell, metric="stage_events").iterrows()}
    widths = {stage: max(count, LEAST_WIDTH * sum(events.values())) for stage, count in events.items()}
    levels = {stage: stage_levels(select(cell, metric="active", stage=stage), shown) for stage in events}
    left = 0.0
    xs = []
    for stage, width in widths.items():
        xs.append(left + width * numpy.linspace(0, 1, levels[stage].shape[1]))
        if left:
            axes.axvline(left, color="black", linewidth=0.6, linestyle=(0, (4, 2)))
        narrow = width < NARROW * sum(widths.values())
        axes.text(
            left + width / 2,
            levels[stage].sum(axis=0).max() + margin * (4 if narrow else 1),
            stage,
            ha="center",
            va="bottom",
            rotation=90 if narrow else 0,
            fontsize=7,
        )
        left += width
    x, heights = numpy.concatenate(xs), numpy.concatenate(list(levels.values()), axis=1)
    tops = numpy.cumsum(heights, axis=0)
    for name, height, top in zip(shown, heights, tops, strict=True):
        axes.fill_between(x, top - height, top, **LOOKS[name])
    peak = int(numpy.argmax(tops[-1]))
    axes.plot(x[peak], tops[-1][peak], marker="v", color="black", markersize=5, clip_on=False)
    axes.set_xlim(0, left)
    axes.set_xticks([])


def stage_levels(rows: DataFrame, shown: list[str]) -> Levels:
    """A stage's kept points, GiB, [category, point]; a stage of one point gets a second one like it."""
    levels = numpy.zeros((len(shown), max([2, *rows["n"]])))
    for _, row in rows.iterrows():
        levels[shown.index(shown_category(row["category"]))] += numpy.array(samples(row)) * MIB / GIB
    return levels
