"""Purposes of the memory at the peak, by context and precision."""

from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.style import NotDrawn, legend, looks, stacked_bar, subplots
from scripts.views.data import PRECISIONS, select
from scripts.views.memory import FOLLOWED, HATCHES, contexts, parts, peak_gib, profiled

WIDTH = 0.37
LOOKS = looks(HATCHES)


def draw(table: DataFrame) -> Figure:
    """Stacked bars, fp32 next to bf16 at each context, one panel per kind of step."""
    rows = select(profiled(table), attention="plain")
    if not len(select(rows, metric="peak_allocated")):
        raise NotDrawn("no memory was recorded on this machine")
    figure, panels = subplots(len(FOLLOWED), height=3.2)
    lengths = contexts(rows)
    for axes, (mode, title) in zip(panels, FOLLOWED.items(), strict=True):
        for group, context in enumerate(lengths):
            for precision, side in zip(PRECISIONS, (-0.5, 0.5), strict=True):
                position = group + 1.1 * WIDTH * side
                cell = select(rows, mode=mode, context=context, precision=precision)
                lost = "OOM" if (cell["status"] == "oom").any() else "n/m"
                text = precision if peak_gib(cell) else f"{precision} {lost}"
                stacked_bar(axes, position, WIDTH, parts(cell), LOOKS, text=text, rotation=90, fontsize=6)
        axes.set_xlim(-0.5, len(lengths) - 0.5)
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
        axes.set(title=title, xlabel="context / tokens")
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.15)
    panels[0].set_ylabel("memory at the peak / GiB")
    legend(panels, ncols=4, fontsize=8)
    return figure
