"""When communication overlaps with compute in a training step on several ranks, contender by contender."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import array, linspace
from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.style import HATCHES, NotDrawn, legend, look, subplots
from scripts.views.comparison import KINDS, contenders, marked, timeline, traced_cell
from scripts.views.data_parallel import shown_in_timelines

ABOVE = ("compute", "optimizer")
"""The kinds of operations that are drawn above the axis."""
NAMES = {
    "compute": "compute",
    "communication": "communication",
    "optimizer": "optimizer",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}
"""The names of the kinds of operations for readers."""
LOOKS = {kind: look(name, index, HATCHES[index]) for index, (kind, name) in enumerate(NAMES.items())}


def draw(measured: DataFrame, experiment: str) -> Figure:
    """One panel per contender, all with the same time axis; of data-parallel wrappers, the fastest of each kind."""
    kind = KINDS[experiment]
    cell = traced_cell(contenders(kind, measured))
    if not len(cell):
        raise NotDrawn("no step was profiled on this machine")
    shown = shown_in_timelines(cell) if kind is DataParallelTraining else cell
    figure, panels = subplots(rows=len(shown), height=0.9 + 0.58 * len(shown))
    for axes, (_, row) in zip(panels, shown.iterrows(), strict=True):
        draw_step(axes, timeline(kind, measured, row), row["timeline_length"])
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
