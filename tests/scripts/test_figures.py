"""Every figure of the recorded report: what its words say is what its numbers are.

Some rows of the tables are made larger; then what is drawn has to change where the words name them, and nowhere else.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.optimizer_sharding import CONTENDERS
from cs336_systems.record.measurement import parse_samples
from scripts.rendering.contents import read_contents
from scripts.stages.draw import drawn as draw
from scripts.views.communication import BACKENDS
from scripts.views.data import at_one_setting
from tests.samples import ROOT
from tests.support.faults import NUMBERS, recorded

FIGURES = {
    name: figure for name, figure in read_contents(ROOT / "report/contents.yaml").figures.items() if figure.table
}
LARGER = 1.001
"""So little that no other contender becomes the fastest, and no other unit the best to read."""
MEASURED = {"time": ["us", "ms", "s"], "memory": ["B", "MiB"], "rate": ["GB/s"]}
"""The units of the tables, by what is measured."""
VARIED = [1 + 1e-3 * turn for turn in (1, 4, 2, 5, 3)]
"""So that ratios change too."""
UNITS = {
    "ms": ("time", 1),
    "µs": ("time", 1),
    "TFLOP/s": ("time", -1),
    "MiB": ("memory", 1),
    "GiB": ("memory", 1),
    "GB/s": ("rate", 1),
}
"""Of axes: what of it enters their numbers, and with which power."""
CALLED = {
    "precision": {"fp32": r"\bfp32\b", "bf16": r"\bbf16\b"},
    "attention": {"plain": r"^plain|\bplain$", "flash": r"^flash"},
    "d": {d: rf"\bd = {d}\b" for d in (16, 32, 64, 128)},
    "processes": {count: rf"\b{count} GPUs|\bn = {count}\b" for count in (2, 4, 8)},
    "backend": {name: rf"\b{title}\b" for name, title in BACKENDS.items()},
    "implementation": {each.name: rf"^{re.escape(each.title)}$" for each in Flash.contenders},
    "contender": {each.name: rf"^{re.escape(each.title)}$" for each in CONTENDERS},
    "label": {size: rf"^{re.escape(size)}(\s|$)" for size in ("small", "medium", "large", "xl", "2.7B", "10B")},
    "compiled": {True: r"\bcompiled$", False: r"\beager$"},
}
"""By column of the tables, how words name its values, but for baselines, which others are measured by."""


@dataclass(frozen=True)
class Drawn:
    """A line, a bar or an area."""

    words: tuple[str, ...]
    """Its name, its panel's title, and the tick at which a bar stands."""
    units: tuple[str, str]
    """Of its panel's axes."""
    numbers: tuple[numpy.ndarray, numpy.ndarray]
    """Along the axes."""


@cache
def as_measured(name):
    """The marks of a figure of the recorded tables."""
    return list(drawn(figure_of(name, tables_of(name))))


@pytest.fixture
def tables(name):
    return tables_of(name)


def tables_of(name):
    """The recorded tables that a figure is drawn from."""
    return {kind: recorded()[kind] for kind in (FIGURES[name].table, FIGURES[name].second_table) if kind}


def figure_of(name: str, tables) -> Figure:
    """A figure of the report, drawn from tables."""
    figure = FIGURES[name]
    sources = figure.sources(tables, {})
    return draw(figure.script, figure.options, [at_one_setting(*source) for source in sources.items()])


def drawn(figure: Figure) -> Iterator[Drawn]:
    """Everything that a figure draws."""
    panels = [axes for axes in figure.axes if axes.axison]
    for axes in panels:
        labels = [axis_label(panels, axes, which) for which in ("x", "y")]
        words = [*labels, *(axes.get_title(place) for place in ("left", "center"))]
        units = tuple(next((unit for unit in UNITS if re.search(rf"(^|/ ){unit}( |$)", label)), "") for label in labels)
        for name, ticks, *numbers in marks(axes):
            said = (" ".join(text.split()) for text in (*words, name, *ticks))
            yield Drawn(tuple(said), units, tuple(numpy.asarray(along, dtype=float) for along in numbers))


def axis_label(panels: list[Axes], axes: Axes, which: str) -> str:
    """The label of an axis, which panels in a row or column may share."""
    span = {"x": "colspan", "y": "rowspan"}[which]
    place = getattr(axes.get_subplotspec(), span)
    labels = {other: getattr(other, f"get_{which}label")() for other in panels}
    along = [labels[other] for other in panels if getattr(other.get_subplotspec(), span) == place]
    return labels[axes] or next(filter(None, [*along, *labels.values()]), "")


def marks(axes: Axes) -> Iterator[tuple]:
    """Each mark of a panel: its name, the tick at which a bar stands, and numbers along both axes."""
    named = {}
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, caps, bars = container.lines
            named |= dict.fromkeys((line, *caps, *bars), container.get_label())
        elif isinstance(container, BarContainer):
            axis = axes.yaxis if container.orientation == "horizontal" else axes.xaxis
            places = axis.get_ticklocs()
            ticks = dict(zip(places, axis.get_major_formatter().format_ticks(places), strict=True))
            for bar in container:
                (left, bottom), (right, top) = bar.get_bbox().get_points()
                middle = (left + right if axis is axes.xaxis else bottom + top) / 2
                nearest = min(ticks, key=lambda place: abs(place - middle))
                yield container.get_label(), [ticks[nearest]], [left, right], [bottom, top]
    for line in axes.lines:
        yield named.get(line, line.get_label()), [], line.get_xdata(), line.get_ydata()
    for area in axes.collections:
        points = numpy.concatenate([numpy.empty((0, 2)), *(path.vertices for path in area.get_paths())])
        yield named.get(area, area.get_label()), [], *points.T


def larger(tables, column, values, factors=(LARGER,)):
    """Tables in which every number is larger of the rows that have a value in a column, one by one by each factor."""
    found = {name: table.copy() for name, table in tables.items()}
    for table in found.values():
        if column in table:
            rows = table.index[table[column].isin(values) & table["mean"].notna()]
            for turn, factor in enumerate(factors):
                own = rows[turn :: len(factors)]
                table.loc[own, NUMBERS] = table.loc[own, NUMBERS].astype(float) * factor
                samples = [[factor * sample for sample in parse_samples(text)] for text in table.loc[own, "samples"]]
                table.loc[own, "samples"] = [" ".join(map(repr, each)) for each in samples]
    return found


def same(old, new, factor=1.0):
    """Whether numbers are others times a factor, one by one."""
    return numpy.isclose(new, old * factor, rtol=1e-6, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", FIGURES)
def test_axes_have_the_units_of_the_numbers(name, tables):
    before = as_measured(name)
    for quantity, units in MEASURED.items():
        after = list(drawn(figure_of(name, larger(tables, "unit", units))))
        for which in (0, 1):
            follow = {}
            for old, new in zip(before, after, strict=True):
                enters, power = UNITS.get(old.units[which], ("", 0))
                factor = LARGER**power if enters == quantity else 1.0
                numbers, others = old.numbers[which], new.numbers[which]
                constant, scaled = same(numbers, others), same(numbers, others, factor)
                assert numpy.all(constant | scaled), (quantity, old, others)
                if factor != 1:
                    follow.setdefault(old.words[:4], []).append(numpy.any(scaled & ~constant))
            assert all(map(any, follow.values())), (quantity, which, follow)


@pytest.mark.slow  # a sweep over the values of every column
@pytest.mark.parametrize("name", FIGURES)
def test_words_name_the_rows_of_the_numbers(name, tables):
    before = as_measured(name)
    for column, called in CALLED.items():
        if column not in tables[FIGURES[name].table]:
            continue
        names = [
            {value for value, said in called.items() if any(map(re.compile(said).search, old.words))} for old in before
        ]
        for value in set().union(*names):
            after = list(drawn(figure_of(name, larger(tables, column, [value], VARIED))))
            changed = [
                not all(numpy.all(same(*pair)) for pair in zip(old.numbers, new.numbers, strict=True))
                for old, new in zip(before, after, strict=True)
            ]
            for old, named, other in zip(before, names, changed, strict=True):
                assert not (named and value not in named and other), (column, value, old)
            assert any(other for other, named in zip(changed, names, strict=True) if value in named), (column, value)


def test_legends_are_made_in_one_place():
    makers = [path for path in (ROOT / "scripts").rglob("*.py") if ".legend(" in path.read_text(encoding="utf-8")]
    own = ROOT / "scripts" / "rendering" / "style.py"
    assert makers == [own], f"{set(makers) - {own}}: end draw with legend(panels) of scripts/rendering/style.py"
