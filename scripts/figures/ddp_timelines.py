"""When communication runs beside compute in a training step, wrapper by wrapper."""

from matplotlib.axes import Axes
from numpy import array, linspace

from scripts.rendering.style import HATCHES, legend, look, save, save_note, subplots
from scripts.views.data import load_at_one_setting
from scripts.views.data_parallel import WORK, shown_in_timelines, timeline, traced_cell

BELOW = "communication"
"""What is drawn below the axis, under what runs beside it."""
LOOKS = {kind: look(kind, index, HATCHES[index]) for index, kind in enumerate(WORK)}


def draw(table: str, output: str) -> None:
    """One panel per wrapper, all with the same time axis."""
    measured = load_at_one_setting("data_parallel", table)
    cell = traced_cell(measured)
    if not len(cell):
        save_note("no step was profiled on this machine", output)
        return
    shown = shown_in_timelines(cell)
    figure, panels = subplots(rows=len(shown), height=0.9 + 0.72 * len(shown))
    for axes, row in zip(panels, shown, strict=True):
        draw_step(axes, timeline(measured, row), row["timeline_length"])
        axes.set_title(row["title"], loc="left", fontsize=8.5)
        axes.set_title(f"{row['timeline_length']:.1f} ms", loc="right", fontsize=8.5)
        axes.set_xlim(0, max(step["timeline_length"] for step in shown))
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("ms since the step began")
    figure.suptitle(cell["cell"].iloc[0], fontsize="medium")
    legend(panels, ncols=len(LOOKS))
    save(figure, output)


def draw_step(axes: Axes, shares: dict[str, list[float]], length: float) -> None:
    """The share of each part of a step in which work of each kind ran: communication below the axis, the rest above."""
    for kind, values in shares.items():
        edges = linspace(0, length, len(values) + 1)
        heights = array([*values, values[-1]]) * (-1 if kind == BELOW else 1)
        axes.fill_between(edges, heights, step="post", **LOOKS[kind])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylim(-1.05, 1.05)
    axes.set_yticks([])
    axes.grid(visible=False)
