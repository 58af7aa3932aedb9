"""Whether each block's weights arrive in time in a forward pass, and how long the device pauses before it."""

from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.rendering.style import NotDrawn, legend, look_of_line, subplots
from scripts.views.comparison import cells_of, contenders, device_bound, marked
from scripts.views.fsdp import by_block

MOST = 2
"""Cells that fit side by side."""


def draw(measured: DataFrame) -> Figure:
    """A column of panels per cell, device-bound ones if there are any: above the lead of weights, below the pauses."""
    rows = contenders(FullyShardedTraining, measured)
    rows = rows[rows["forward_length"].notna()]
    preferred = device_bound(rows)
    cells = [
        (cell.iloc[0], {row["title"]: blocks for _, row in cell.iterrows() if len(blocks := by_block(measured, row))})
        for cell in cells_of(preferred if len(preferred) else rows)
    ]
    shown = [(first, lines) for first, lines in cells if lines][:MOST]
    if not shown:
        raise NotDrawn("no forward pass with all-gathers was profiled on this machine")
    figure, panels = subplots(len(shown), rows=2, height=3.8, sharey=False)
    above, below = panels[: len(shown)], panels[len(shown) :]
    titles = list(dict.fromkeys(title for _, lines in shown for title in lines))
    for lead, wait, (first, lines) in zip(above, below, shown, strict=True):
        for title, blocks in lines.items():
            look = look_of_line(titles.index(title)) | {"markersize": 2.5}
            lead.plot(blocks.index, blocks["lead"], label=title, **look)
            wait.plot(blocks.index, blocks["pause"], label=title, **look)
        lead.axhline(0, color="black", linewidth=0.8)
        lead.set_title(marked(first), fontsize=8.5)
        lead.set_yscale("symlog", linthresh=1)
        lead.set_ylim(top=2 * max(1.0, *(blocks["lead"].max() for blocks in lines.values())))
        lead.yaxis.set_major_formatter("{x:g}")
        lead.tick_params(labelbottom=False)
        wait.set_ylim(bottom=0)
        wait.set_xlabel("block")
    above[0].set_ylabel("weights ready\nbefore needed / ms")
    below[0].set_ylabel("pause / ms")
    legend(panels, ncols=3)
    return figure
