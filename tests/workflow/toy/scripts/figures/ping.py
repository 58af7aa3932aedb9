"""All-reduce time against message size."""

from scripts.rendering.style import MARKERS, NotDrawn, legend, save, subplots
from scripts.views.data import load_at_one_setting, select


def draw(table: str, output: str) -> None:
    """One line per number of processes."""
    data = select(load_at_one_setting("ping", table), metric="all_reduce")
    if not len(data):
        raise NotDrawn("no ping was measured")
    figure, panels = subplots()
    (axes,) = panels
    for index, (processes, rows) in enumerate(data.groupby("processes")):
        axes.plot(rows["numbers"], rows["median"], marker=MARKERS[index], label=f"{processes} processes")
    axes.set_xlabel("numbers")
    axes.set_ylabel("all-reduce / ms")
    legend(panels)
    save(figure, output)
