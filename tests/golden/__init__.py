"""Whole reports as text, as approved: a recorded H200, a laptop, and an H200 half of whose cells are missing.

Launch: python -m tests.golden, which approves the present ones. What changed is in `git diff tests/golden`.
"""

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, Container
from numpy.typing import NDArray
from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan, make_plan
from cs336_systems.record.rows import parameters, read_jobs
from cs336_systems.record.validation import Row
from scripts.rendering.contents import read_contents
from scripts.rendering.style import lay_out
from scripts.stages import tables
from scripts.stages.draw import drawn
from scripts.stages.self_checks import all_checks
from scripts.stages.writeup import compute, fill
from scripts.views.coverage import cover
from scripts.views.data import at_one_setting, frame
from tests.samples import ROOT, config, planned_rows

FOLDER = Path(__file__).parent
RECORDED = "nvidia-h200"
SHOWN = 24
"""Of a series with more numbers only these many are kept, evenly chosen."""


@dataclass(frozen=True)
class Machine:
    """A machine's measurements, under its plan."""

    plan: Plan
    rows: Mapping[str, list[Row]]

    def thinned(self, seed: int, cells: float, metrics: float) -> "Machine":
        """The machine with a share of its cells, and of each cell's metrics, chosen by a seed."""

        def kept(name: str, row: Row) -> bool:
            cell = f"{seed} {name} {[getattr(row, key) for key in parameters(EXPERIMENTS[name])]}"
            whole, part = (random.Random(f"{cell} {what}").random() for what in ("", row.metric))
            return whole < cells and part < metrics

        return Machine(self.plan, {name: [row for row in rows if kept(name, row)] for name, rows in self.rows.items()})

    def report(self) -> dict[str, str]:
        """The Typst source of its report, and its self-checks."""
        # As if all rows were of the present revisions, whichever these are.
        tables = {name: frame(name, rows).assign(revisions="") for name, rows in self.rows.items()}
        checks = DataFrame(map(asdict, all_checks(tables)))
        with contextlib.chdir(ROOT):
            contents = read_contents()
            computed = compute(contents, self.plan, tables, cover(self.plan, tables), checks)
            text = fill(contents, computed)
        return {"report.typ": text, "checks.csv": checks.to_csv(index=False)}


@cache
def machine(name: str) -> Machine:
    """One of the machines whose reports are approved: h200, laptop or sparse."""
    if name == "sparse":
        return machine("h200").thinned(0, 0.5, 0.9)
    if name == "laptop":
        plan = replace(make_plan(config(machine="cpu")), traced={})  # whatever this checkout has traced
        return Machine(plan, {key: planned_rows(key, plan.scale) for key in EXPERIMENTS})
    plan = make_plan(config(recorded=RECORDED), ROOT / "recorded")
    raw = {key: sorted((ROOT / plan.raw / key).glob("*.csv")) for key in EXPERIMENTS}
    return Machine(
        plan, {key: tables.planned_rows(plan, key, read_jobs(EXPERIMENTS[key], raw[key], RECORDED)) for key in raw}
    )


def texts() -> dict[str, str]:
    """The golden files by name: the recorded machine's self-checks and figures too."""
    recorded = machine("h200")
    reports = {f"h200-{name}": text for name, text in recorded.report().items()}
    reports |= {f"{name}-report.typ": machine(name).report()["report.typ"] for name in ("laptop", "sparse")}
    with contextlib.chdir(ROOT):
        traces = {path.name.partition(".")[0]: str(path) for path in recorded.plan.traces.glob("*")}
        figures = "\n".join(figure_lines(recorded.rows, traces))
    return reports | {"h200-figures.txt": f"{figures}\n"}


def figure_lines(rows: Mapping[str, list[Row]], traces: Mapping[str, str]) -> Iterator[str]:
    """The content of each figure: per panel its title and axes, per line, bar or area its name and numbers."""
    tables = {name: at_one_setting(name, frame(name, table)) for name, table in rows.items()}
    for name, figure in read_contents().figures.items():
        picture = drawn(figure.script, figure.sources(tables, traces).values())
        lay_out(picture)
        yield f"== {name}"
        for axes in picture.axes:
            yield from axes_lines(axes)
        yield from (f"legend: {text.get_text()!r}" for legend in picture.legends for text in legend.get_texts())


def axes_lines(axes: Axes) -> Iterator[str]:
    """One panel."""
    scales = [f"{axis.get_label_text()!r} ({axis.get_scale()})" for axis in (axes.xaxis, axes.yaxis)]
    yield f"-- {axes.get_title()!r}: {' by '.join(scales)}"
    if any(ticks := [tick.get_text() for tick in axes.get_xticklabels()]):
        yield f"ticks: {' '.join(ticks)}"
    for line in axes.lines:
        yield f"line{name(line)}: {columns([line.get_xdata(), line.get_ydata()])}"
    for container in axes.containers:
        if isinstance(container, BarContainer):
            sides = [(bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in container]
            yield f"bars{name(container)}: {columns(zip(*sides, strict=True))}"
    for collection in axes.collections:
        points = numpy.asarray(collection.get_offsets())
        if len(points) < 2:
            points = numpy.concatenate([numpy.empty((0, 2)), *(path.vertices for path in collection.get_paths())])
        yield f"shape{name(collection)}: {columns(points.T)}"
    yield from (f"text: {text.get_text()!r}" for text in axes.texts)


def name(artist: Artist | Container) -> str:
    """Its name in the legend; matplotlib numbers what has no name."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else f" {label}"


def columns(values: Iterable[Any]) -> str:
    """Columns of numbers, to four digits; of long ones the count, the mean and some numbers."""
    return " | ".join(numbers(numpy.ma.filled(numpy.ma.asarray(column, dtype=float), numpy.nan)) for column in values)


def numbers(column: NDArray[numpy.float64]) -> str:
    """One of them."""
    if len(column) <= SHOWN:
        return " ".join(f"{value:.4g}" for value in column)
    chosen = column[numpy.linspace(0, len(column) - 1, SHOWN).astype(int)]
    return f"{len(column)}, mean {numpy.nanmean(column):.4g}, {numbers(chosen)}"
