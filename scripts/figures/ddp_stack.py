"""Parts of a data-parallel step, wrapper by wrapper: compute, the time that communication adds, and idle time."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.style import HATCHES, NotDrawn, legend, look, subplots
from scripts.views.comparison import contenders, fastest
from scripts.views.data_parallel import STACK, kinds, stack, stacked_cells

PANELS = 2
COLOUR = [0, 4, 1, 7]
"""The part's index among the colours."""


def draw(table: DataFrame) -> Figure:
    """Stacked bars, a panel for each of the first cells; a wrapper is shown at its fastest setting."""
    cells = stacked_cells(contenders(DataParallelTraining, table))[:PANELS]
    if not cells:
        raise NotDrawn("no device-bound step was profiled on this machine")
    shown = {name: names for cell in cells for name, names in kinds(cell).items() if fastest(cell, names) is not None}
    figure, panels = subplots(len(cells), height=0.9 + 0.24 * len(shown))
    for axes, cell in zip(panels, cells, strict=True):
        draw_cell(axes, cell, shown)
    panels[0].invert_yaxis()
    legend(panels, ncols=len(STACK))
    return figure


def draw_cell(axes: Axes, cell: DataFrame, shown: dict[str, list[str]]) -> None:
    """One bar per wrapper, with the length of its profiled step at the end."""
    for place, names in enumerate(shown.values()):
        row = fastest(cell, names)
        if row is None or row["timeline_length"] != row["timeline_length"]:
            axes.text(0, place, " n/m", va="center", fontsize=7)
            continue
        left = 0.0
        for index, (name, width) in enumerate(zip(STACK, stack(cell, row), strict=True)):
            axes.barh(place, width, 0.72, left, **look(name, COLOUR[index], HATCHES[index]))
            left += width
        axes.text(left, place, f" {left:.1f}", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set(title=str(cell["cell"].iloc[0]), xlabel="profiled step / ms")
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
