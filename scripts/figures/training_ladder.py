"""The training ladder from the first step to the fastest, with its parts alone as a line."""

from matplotlib.axes import Axes
from pandas import DataFrame

from scripts.rendering.markup import significant
from scripts.rendering.style import COLOURS, HATCHES, NotDrawn, legend, save, subplots
from scripts.views.data import load_at_one_setting
from scripts.views.training_ladder import ends, rung_table

ROOM = 1.35
"""The axis ends at this many times the second step: the first would hide the others."""


def draw(table: str, output: str) -> None:
    """A panel for the smallest model, and one for the largest."""
    found = ends(rung_table(load_at_one_setting("training_ladder", table)))
    if not found:
        raise NotDrawn("not measured")
    figure, panels = subplots(len(found), height=2.8, sharey=False)
    for axes, ladder in zip(panels, found, strict=True):
        draw_ladder(axes, ladder)
    legend(panels, ncols=3)
    save(figure, output)


def draw_ladder(axes: Axes, ladder: DataFrame) -> None:
    """A bar per rung, the part hatched that it saves of the one before."""
    steps = list(ladder["step"])
    end = ROOM * max(steps[1:])
    places = range(len(steps))
    axes.barh(places, [min(step, end) for step in steps], 0.7, label="step", color=COLOURS[0])
    saved = [(place, steps[place], steps[place - 1]) for place in places if place]
    axes.barh(
        [place for place, _, _ in saved],
        [max(0.0, min(before, end) - step) for _, step, before in saved],
        0.7,
        left=[step for _, step, _ in saved],
        label="saved by this rung",
        facecolor="none",
        edgecolor=COLOURS[7],
        hatch=HATCHES[1],
        linewidth=0.5,
    )
    for place, step in enumerate(steps):
        if step > end:
            axes.annotate(
                "→", (end, place), (-3, 0), textcoords="offset points", ha="right", va="center", color="white"
            )
    floor = ladder["floor"].iloc[0]
    if floor == floor:
        axes.axvline(floor, linestyle="--", color="black", linewidth=1.0, label="its parts alone")
    first = ladder.iloc[0]
    names = [f"{title}: {significant(step)}" for title, step in zip(ladder["title"], steps, strict=True)]
    axes.set_yticks(places, names, fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlim(0, end)
    axes.set(title=f"{first['label']}, {first['batch_size']} × {first['context']} tokens", xlabel="step / ms")
    axes.grid(axis="y", visible=False)
