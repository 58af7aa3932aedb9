"""Write the meaning of a figure's points and bars into its SVG, so that the page can show it at the pointer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.category import StrCategoryLocator
from matplotlib.container import BarContainer
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Transform

MOST = 400
"""Largest number of points of one line or cloud: more cannot be separated by a pointer."""
Mark = tuple[float, float, str]
"""The position of a mark, in the SVG's coordinates, and its meaning."""


class Values(Artist):
    """Draws nothing: while the figure is drawn, it records the position of each mark."""

    def draw(self, renderer: Any) -> None:
        """Write the marks of all panels into the SVG as an element that is not shown."""
        figure = self.get_figure(root=True)
        assert figure
        marks = [
            (round(x, 1), round(renderer.height - y, 1), text) for axes in figure.axes for x, y, text in marks_of(axes)
        ]
        renderer.writer.element("metadata", json.dumps(marks, ensure_ascii=False), {"id": "values"})


def marks_of(axes: Axes) -> Iterator[Mark]:
    """The points and bars of one panel, in the coordinates of the display."""
    told = in_words(axes)
    for line in axes.lines:
        if line.get_transform().contains_branch_seperately(axes.transData) == (True, True):
            yield from points(told, line.get_label(), line.get_xydata(), line.get_transform())
    for collection in axes.collections:
        if len(offsets := numpy.asarray(collection.get_offsets())) > 1:
            yield from points(told, collection.get_label(), offsets, collection.get_offset_transform())
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            upright = bars.orientation == "vertical"
            for bar in bars:
                sides = numpy.array([bar.get_width(), bar.get_height()])
                middle = numpy.array(bar.get_xy()) + sides / 2
                if sides.all():  # What was not measured has no height.
                    values = (middle[0], sides[1]) if upright else (sides[0], middle[1])
                    yield from points(told, bars.get_label(), [values], axes.transData, [middle])


def points(
    told: Callable[..., str], label: object, values: Any, transform: Transform, places: Any = None
) -> Iterator[Mark]:
    """All values if they are few, otherwise none; `places`: their positions if they are drawn elsewhere."""
    if len(values) <= MOST:
        for place, value in zip(transform.transform(values if places is None else places), values, strict=True):
            if numpy.isfinite([*place, *value]).all():
                yield *place, told(label, *value)


def in_words(axes: Axes) -> Callable[..., str]:
    """The function that describes a position in a panel: panel and name, then each axis with its value."""
    ways = []
    both = (
        (axes.xaxis, axes.get_shared_x_axes(), axes.figure.get_supxlabel()),
        (axes.yaxis, axes.get_shared_y_axes(), axes.figure.get_supylabel()),
    )
    for axis, shared, of_all in both:
        panels = [axes, *shared.get_siblings(axes)]
        titles = [getattr(panel, f"{axis.axis_name}axis").get_label_text().replace("\n", " ") for panel in panels]
        names: dict[int, str] = {}
        if isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator):
            texts = (tick.get_text().replace("\n", " ") for tick in axis.get_ticklabels())
            names = dict(zip((round(place) for place in axis.get_ticklocs()), texts, strict=False))
        ways.append((next(filter(None, titles), of_all), names))

    def told(label: object, *values: float) -> str:
        name = str(label or "")
        lines = [", ".join(filter(None, [axes.get_title(), "" if name.startswith("_") else name])).replace("\n", " ")]
        for (title, names), value in zip(ways, values, strict=True):
            number = f"{value:.4g}"
            lines.append(f"{title}{': ' if title else ''}{names.get(round(value), number) if names else number}")
        return "\n".join(filter(None, lines))

    return told
