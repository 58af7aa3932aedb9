"""All-reduce time against message size."""

from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.style import MARKERS, NotDrawn, legend, subplots
from scripts.views.data import select


def draw(table: DataFrame) -> Figure:
    """One line per number of processes."""
    data = select(table, metric="all_reduce")
    if not len(data):
        raise NotDrawn("no ping was measured")
    figure, panels = subplots()
    (axes,) = panels
    for index, (processes, rows) in enumerate(data.groupby("processes")):
        axes.plot(rows["numbers"], rows["median"], marker=MARKERS[index], label=f"{processes} processes")
    axes.set_xlabel("numbers")
    axes.set_ylabel("all-reduce / ms")
    legend(panels)
    return figure
