"""The training ladder from the first step to the fastest, and the parts of a step timed alone."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from scripts.rendering.markup import significant
from scripts.rendering.style import COLOURS, HATCHES, NotDrawn, legend, look, subplots
from scripts.views.data import one
from scripts.views.training_ladder import PARTS, SHAPE, ends, floor_table, rung_table

COLOUR = [2, 1, 4, 3]
"""The part's index among the colours."""
ROOM = 1.35
"""The axis ends at this many times the second step: the first would hide the others."""


def draw(data: DataFrame) -> Figure:
    """A panel for the smallest model, and one for the largest."""
    shown = ends(rung_table(data))
    if not shown:
        raise NotDrawn("not measured")
    figure, panels = subplots(len(shown), height=3.0, sharey=False)
    for axes, ladder in zip(panels, shown, strict=True):
        draw_ladder(axes, ladder)
        draw_parts(axes, one(floor_table(data), **dict(ladder.iloc[0][SHAPE])), len(ladder))
        axes.invert_yaxis()
    legend(panels, ncols=3)
    return figure


def draw_ladder(axes: Axes, ladder: DataFrame) -> None:
    """A bar per rung; the time it saves over the previous one is hatched, if neither is host-bound."""
    steps, bound = list(ladder["step"]), list(ladder["host_bound"].astype(bool))
    end = ROOM * max(steps[1:])
    places = range(len(steps))
    axes.barh(places, [min(step, end) for step in steps], 0.7, label="step", color=COLOURS[0])
    saved = [place for place in places[1:] if not any(bound[place - 1 : place + 1])]
    if saved:  # Without any bar, the legend would show bars of another look.
        axes.barh(
            saved,
            [max(0.0, min(steps[place - 1], end) - steps[place]) for place in saved],
            0.7,
            left=[steps[place] for place in saved],
            label="saved by this rung",
            facecolor="none",
            edgecolor=COLOURS[7],
            hatch=HATCHES[1],
            linewidth=0.5,
        )
    for place, step in enumerate(steps):
        if step > end:
            look_of_text: dict[str, Any] = {"ha": "right", "va": "center", "color": "white", "fontsize": "x-small"}
            axes.annotate("continues →", (end, place), (-3, 0), textcoords="offset points", **look_of_text)
    first = ladder.iloc[0]
    names = [f"{title}: {significant(step)}" for title, step in zip(ladder["title"], steps, strict=True)]
    axes.set_yticks(places, names, fontsize="x-small")
    axes.set_xlim(0, end)
    axes.set(title=f"{first['label']}, {first['batch_size']} × {first['context']} tokens", xlabel="step / ms")
    axes.grid(axis="y", visible=False)


def draw_parts(axes: Axes, floor: Series | None, place: int) -> None:
    """A stacked bar of the parts of a step, if all were timed."""
    if floor is None or floor["floor"] != floor["floor"]:
        return
    left = 0.0
    for number, name in enumerate(PARTS):
        axes.barh(place, floor[name], 0.7, left, **look(name, COLOUR[number], HATCHES[number]))
        left += floor[name]
    ticks = [*(tick.get_text() for tick in axes.get_yticklabels()), f"its parts, timed alone: {significant(left)}"]
    axes.set_yticks(range(place + 1), ticks, fontsize="x-small")
