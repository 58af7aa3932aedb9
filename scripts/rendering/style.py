"""The look of all figures: vector graphics, colours for the colour-blind, marks that are distinguishable in grey."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

# Okabe & Ito 2008, ordered so that neighbours also differ in lightness.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
LINES: list[Any] = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 2.5))]
"""Line styles, so that the lines of a panel are also distinguishable in grey."""
HATCHES = ["", "///", "...", "xxx", "\\\\\\"]
WIDTH = 6.3
"""Width of the page's text, inches."""

rcParams.update(
    {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": "medium",
        "axes.titley": 1.0,  # its default place: looking for ticks above it takes a tenth of a figure's time
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "lines.markersize": 4.5,
        "svg.hashsalt": "cs336-systems",  # the same picture gives the same bytes
        "text.parse_math": False,  # a kernel's or a size's name may contain dollar signs
    }
)


Look = dict[str, Any]
"""The name and the fill of an area or a bar, in the words of `Axes.bar`."""


def look(label: str, colour: int, hatch: str) -> Look:
    """A name and a fill with one of COLOURS."""
    return {"label": label, "facecolor": COLOURS[colour], "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


def looks(hatches: Mapping[str, str]) -> dict[str, Look]:
    """The fill of each area of a stack, by its name, from its hatch."""
    return {name: look(name, index, hatch) for index, (name, hatch) in enumerate(hatches.items())}


def look_of_bar(label: str, index: int) -> Look:
    """A name and the fill of one of several parts or groups of bars."""
    return look(label, index % len(COLOURS), HATCHES[index % len(HATCHES)])


def look_of_line(index: int) -> dict[str, Any]:
    """The colour, marks and dashes of one of several lines."""
    styles = {"color": COLOURS, "marker": MARKERS, "linestyle": LINES}
    return {name: values[index % len(values)] for name, values in styles.items()}


def lay_out(figure: Figure) -> None:
    """Place the panels for good; in savefig, this would cost an additional drawing."""
    if layout := figure.get_layout_engine():
        # Parts inside their panel need not be measured.
        for axes in figure.axes:
            for artist in (*axes.spines.values(), *axes.lines, *axes.patches, *axes.collections):
                artist.set_in_layout(False)
        layout.execute(figure)
        figure.set_layout_engine("none")


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as SVG without a date."""
    lay_out(figure)
    figure.savefig(path, format="svg", metadata={"Date": None})


def subplots(
    columns: int = 1, height: float = 2.6, *, rows: int = 1, sharey: bool = True, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Panels across the page's width, row by row, with a shared vertical axis unless they show different things."""
    figure = FigureCanvasSVG(Figure(figsize=(WIDTH, height))).figure
    return figure, list(figure.subplots(rows, columns, sharey=sharey, squeeze=False, **options).flat)


def legend(panels: Sequence[Axes], **options: Any) -> None:
    """Show each name in the panels once, below them, with the look of the elements with that name.

    All legends are made here: each element has its own name, so a name cannot be shown next to a wrong colour.
    """
    shown: dict[str, Any] = {}
    for axes in panels:
        for artist, name in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(name, artist)
    panels[0].figure.legend(shown.values(), shown.keys(), **{"loc": "outside lower center"} | options)


class NotDrawn(Exception):
    """Raised if there is nothing to draw, with the reason."""


def note(text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure, (axes,) = subplots(height=0.8)
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", style="italic")
    return figure


def stacked_bar(
    axes: Axes, position: float, width: float, parts: Mapping[str, float], looks: Mapping[str, Look], **text: Any
) -> None:
    """A stacked bar, with a text above it; options as in `annotate`."""
    bottom = 0.0
    for name, size in parts.items():
        axes.bar(position, size, width, bottom=bottom, **looks[name])
        bottom += size
    annotate(axes, (position, bottom), **text)


def annotate(axes: Axes, place: tuple[float, float], text: str, **look: Any) -> None:
    """A text just above a position, unless `look` sets another; options as in `Axes.annotate`."""
    usual: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": 7}
    axes.annotate(text, place, **usual | look)


def log_scale(axis: XAxis | YAxis) -> None:
    """A logarithmic axis with its ticks written out: powers of ten, and 2 and 5 times them if there is room."""
    low, high = axis.get_data_interval()
    widest = 100 if axis.axis_name == "x" else 1000
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < widest * low else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
