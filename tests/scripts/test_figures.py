"""Every figure of the recorded report has the units that its axes name.

All numbers are made larger, each quantity by its own factor: what is drawn along an axis must follow its quantity.
"""

import re
from collections.abc import Iterator

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from cs336_systems.record.measurement import parse_samples
from scripts.rendering.contents import read_contents
from scripts.rendering.style import legend, note, save, subplots
from scripts.stages import draw
from scripts.views.data import at_one_setting
from tests.samples import ROOT
from tests.support.faults import NUMBERS, recorded

FIGURES = {
    name: figure for name, figure in read_contents(ROOT / "report/contents.yaml").figures.items() if figure.tables
}
TIME, MEMORY, RATE = 1.001, 1.002, 1.003
"""So little that no other contender becomes the fastest, and no other unit the best to read."""
MEASURED = {"us": TIME, "ms": TIME, "s": TIME, "B": MEMORY, "MiB": MEMORY, "GB/s": RATE}
"""The factors of numbers, by the units of the tables."""
DRAWN = {"ms": TIME, "µs": TIME, "TFLOP/s": 1 / TIME, "MiB": MEMORY, "GiB": MEMORY, "GB/s": RATE}
"""The factors that follow, by the units of axes."""


def figure_of(name: str, tables) -> Figure:
    figure = FIGURES[name]
    sources = figure.sources(tables, {})
    return draw.drawn(figure.script, [at_one_setting(*source) for source in sources.items()])


def drawn(figure: Figure) -> Iterator[tuple[tuple[str, str], numpy.ndarray]]:
    """The numbers of each line, bar and area along both axes, by the panel's title and the axis's label."""
    panels = [axes for axes in figure.axes if axes.axison]
    for axes in panels:
        labels = [axis_label(panels, axes, which) for which in ("x", "y")]
        for numbers in marks(axes):
            yield from zip([(axes.get_title(), label) for label in labels], numbers, strict=True)


def axis_label(panels: list[Axes], axes: Axes, which: str) -> str:
    """The label of an axis, which panels in a row or column may share."""
    span = {"x": "colspan", "y": "rowspan"}[which]
    place = getattr(axes.get_subplotspec(), span)
    labels = {other: getattr(other, f"get_{which}label")() for other in panels}
    along = [labels[other] for other in panels if getattr(other.get_subplotspec(), span) == place]
    return labels[axes] or next(filter(None, [*along, *labels.values()]), "")


def marks(axes: Axes) -> Iterator[numpy.ndarray]:
    """The numbers of each mark of a panel, along both axes."""
    for container in axes.containers:
        if isinstance(container, BarContainer):
            yield from (bar.get_bbox().get_points().T for bar in container)
    yield from (line.get_xydata().T for line in axes.lines)
    for area in axes.collections:
        yield numpy.concatenate([numpy.empty((0, 2)), *(path.vertices for path in area.get_paths())]).T


def larger(table):
    table = table.copy()
    factors = table["unit"].map(MEASURED)[table["mean"].notna()].dropna()
    rows = factors.index
    table.loc[rows, NUMBERS] = table.loc[rows, NUMBERS].astype(float).mul(factors, axis=0)
    samples = zip(factors, map(parse_samples, table.loc[rows, "samples"]), strict=True)
    table.loc[rows, "samples"] = [" ".join(repr(factor * sample) for sample in each) for factor, each in samples]
    return table


def same(old, new, factor=1.0):
    """Whether numbers are others times a factor, one by one."""
    return numpy.isclose(new, old * factor, rtol=1e-6, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", FIGURES)
def test_axes_have_the_units_of_the_numbers(name):
    tables = {kind: recorded()[kind] for kind in FIGURES[name].tables}
    before = drawn(figure_of(name, tables))
    after = drawn(figure_of(name, {kind: larger(table) for kind, table in tables.items()}))
    follow = {}
    for (axis, old), (_, new) in zip(before, after, strict=True):
        unit = next((unit for unit in DRAWN if re.search(rf"(^|/ ){unit}( |$)", axis[1])), "")
        constant, scaled = same(old, new), same(old, new, DRAWN.get(unit, 1.0))
        assert numpy.all(constant | scaled), (axis, old, new)
        if unit:
            follow.setdefault(axis, []).append(numpy.any(scaled & ~constant))
    assert all(map(any, follow.values())), follow


def test_legends_are_made_in_one_place():
    makers = [path for path in (ROOT / "scripts").rglob("*.py") if ".legend(" in path.read_text(encoding="utf-8")]
    own = ROOT / "scripts" / "rendering" / "style.py"
    assert makers == [own], f"{set(makers) - {own}}: end draw with legend(panels) of scripts/rendering/style.py"


def test_a_legend_shows_each_name_once_with_the_colour_of_what_is_drawn():
    colours = {"one": "red", "two": "green", "three": "blue"}
    figure, panels = subplots(2)
    for axes, names in zip(panels, (["one", "two"], ["two", "three"]), strict=True):
        for name in names:
            axes.plot([0, 1], [0, 1], color=colours[name], label=name)
    legend(panels)
    (made,) = figure.legends
    shown = {text.get_text(): line.get_color() for text, line in zip(made.get_texts(), made.get_lines(), strict=True)}
    assert shown == colours


@pytest.mark.parametrize("name", ["$x$", "a$b{$", r"cost in $, or in $\frac", "a_b^c"])
def test_a_name_with_dollar_signs_is_written_as_it_is(tmp_path, name):
    save(note(f"operator {name}"), tmp_path / "figure.svg")
    assert f"<!-- operator {name} -->" in (tmp_path / "figure.svg").read_text()
