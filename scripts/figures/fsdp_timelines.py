"""When weights are gathered and gradients reduced in a training step, contender by contender."""

from matplotlib.axes import Axes
from numpy import array, linspace

from scripts.rendering.style import HATCHES, legend, look, save, save_note, subplots
from scripts.views.data import load_at_one_setting
from scripts.views.fsdp import contenders, series, traced_cell

ABOVE = {"compute": "compute", "optimizer": "optimizer"}
BELOW = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "communication": "other communication"}
"""The kinds of work that are drawn above and below the axis, and what readers call them."""
LOOKS = {kind: look(name, index, HATCHES[index]) for index, (kind, name) in enumerate({**ABOVE, **BELOW}.items())}


def draw(table: str, output: str) -> None:
    """One panel per contender, all with the same time axis."""
    measured = load_at_one_setting("fsdp", table)
    cell = traced_cell(contenders(measured))
    if not len(cell):
        save_note("no step was profiled on this machine", output)
        return
    figure, panels = subplots(rows=len(cell), height=0.9 + 0.72 * len(cell))
    for axes, (_, row) in zip(panels, cell.iterrows(), strict=True):
        for kind in LOOKS:
            if shares := series(measured, row, "timeline", kind):
                draw_shares(axes, shares, row["timeline_length"], kind)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(row["title"], loc="left", fontsize=8.5)
        axes.set_title(f"{row['timeline_length']:.1f} ms", loc="right", fontsize=8.5)
        axes.set_xlim(0, cell["timeline_length"].max())
        axes.set_ylim(-1.05, 1.05)
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("ms since the step began")
    figure.suptitle(cell["cell"].iloc[0], fontsize="medium")
    legend(panels, ncols=3)
    save(figure, output)


def draw_shares(axes: Axes, shares: list[float], length: float, kind: str) -> None:
    """The share of each part of a step in which work of one kind ran."""
    edges = linspace(0, length, len(shares) + 1)
    heights = array([*shares, shares[-1]]) * (-1 if kind in BELOW else 1)
    axes.fill_between(edges, heights, step="post", **LOOKS[kind])
