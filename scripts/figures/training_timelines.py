"""When communication overlaps with compute in a training step on several ranks, contender by contender."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import array, linspace
from pandas import DataFrame

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from scripts.rendering.style import HATCHES, NotDrawn, legend, look, subplots
from scripts.views.comparison import contenders, marked, timeline, traced_cell
from scripts.views.data_parallel import fastest_of_each

ABOVE = ("compute", "optimizer")
"""The kinds of operations that are drawn above the axis."""
KINDS = ("compute", "communication", "optimizer")
LOOKS = {kind: look(kind, index, HATCHES[index]) for index, kind in enumerate(KINDS)}


def draw(measured: DataFrame) -> Figure:
    """One panel for the fastest of each kind of wrapper, all with the same time axis."""
    cell = traced_cell(contenders(DataParallelTraining, measured))
    if not len(cell):
        raise NotDrawn("no step was profiled on this machine")
    shown = fastest_of_each(cell[cell["contender"] != BASELINE])
    figure, panels = subplots(rows=len(shown), height=0.9 + 0.58 * len(shown))
    for axes, (_, row) in zip(panels, shown.iterrows(), strict=True):
        draw_step(axes, timeline(DataParallelTraining, measured, row), row["timeline_length"])
        axes.set_title(row["title"], loc="left", fontsize=8.5)
        axes.set_title(f"{row['timeline_length']:.1f} ms", loc="right", fontsize=8.5)
        axes.set_xlim(0, shown["timeline_length"].max())
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("ms since the step began")
    figure.suptitle(marked(shown.iloc[0]), fontsize="medium")
    legend(panels, ncols=3)
    return figure


def draw_step(axes: Axes, shares: dict[str, list[float]], length: float) -> None:
    """The share of each part of a step in which operations of each kind ran: communication below the axis, the rest
    above.
    """
    for kind, values in shares.items():
        edges = linspace(0, length, len(values) + 1)
        heights = array([*values, values[-1]]) * (1 if kind in ABOVE else -1)
        axes.fill_between(edges, heights, step="post", **LOOKS[kind])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylim(-1.05, 1.05)
    axes.set_yticks([])
    axes.grid(visible=False)
