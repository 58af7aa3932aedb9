"""Random parts of measured and made-up tables, as interrupted runs, smaller machines and other grids leave them.

Launch: python -m tests.subsets FIRST LAST [STEP], which makes a report of each seed, typesets it, and prints what
crashed.
"""

import contextlib
import importlib
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from matplotlib.figure import Figure
from matplotlib.text import Text
from pandas import DataFrame

from cs336_systems.discovery import modules
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.measure.record import parameters, read_jobs
from cs336_systems.measure.validation import Row, first_fault
from cs336_systems.plan import Plan, make_plan
from scripts.checks import Check
from scripts.coverage import cover
from scripts.draw import draw
from scripts.rendering.contents import read_contents
from scripts.views.data import frame
from scripts.writeup import render, typeset
from tests.samples import H200, ROOT, config, planned_rows

Rows = list[Row]
CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
RECORDED = "nvidia-h200"
KEEP = (0.02, 0.2, 0.5, 0.9)
SOURCES = ["recorded", "h200", "cpu"]
TABLES = 3
"""So many tables of a try have rows, for speed."""
NO_NUMBER = re.compile(r".{0,60}(?<![\w.])(?:nan|inf|NaN|None(?! of))\b.{0,30}")
"""What stands in a text for a number that there is none of; not torch.inf, in a line of code that a table quotes."""
LARGE = 1000
"""Of tables with more rows only few cells are taken, for speed."""
EMPTY_PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50"/>'
TRACES = ["", *(str(ROOT / "tests" / "traces" / f"{name}.json.gz") for name in ("eager", "flash"))]


@dataclass(frozen=True)
class Source:
    """Whole tables, and the plan under which they were measured."""

    plan: Plan
    rows: Mapping[str, Rows]


@cache
def source(name: str) -> Source:
    """The recorded tables, or made-up ones of all that an H200 or a CPU measures."""
    if name == "recorded":
        folder = ROOT / "recorded" / RECORDED / "raw"
        plan = make_plan(config(recorded=RECORDED), ROOT / "recorded")
        rows = {key: read_jobs(kind, sorted((folder / key).glob("*.csv"))) for key, kind in EXPERIMENTS.items()}
        return Source(plan, rows)
    plan = make_plan(config(machine="1 x NVIDIA H200" if name == "h200" else "cpu"))
    origin = H200 if name == "h200" else {}
    return Source(plan, {key: planned_rows(key, plan.scale, **origin) for key in EXPERIMENTS})


def cell_of(row: Row) -> tuple[Any, ...]:
    """A row's parameters."""
    return tuple(getattr(row, name) for name in parameters(EXPERIMENTS[row.experiment]))


def lost(row: Row, status: str, **changes: Any) -> Row:
    """The row as it is where the measurement came to nothing."""
    empty = dict.fromkeys(("mean", "std", "median", "p20", "p80"))
    return row.model_copy(
        update={
            **empty,
            "n": 0,
            "value": "",
            "samples": "",
            "status": status,
            "message": f"made up: {status}",
            **changes,
        }
    )


def some(rng: random.Random, items: list[Any]) -> set[Any]:
    """Some of the distinct items, at least one."""
    distinct = list(dict.fromkeys(items))
    return set(rng.sample(distinct, rng.randint(1, len(distinct))))


def a_status(rng: random.Random) -> str:
    return rng.choice(["oom", "skipped", "failed"])


def no_rows(rng: random.Random, rows: Rows) -> Rows:
    return []


def one_row(rng: random.Random, rows: Rows) -> Rows:
    return [rng.choice(rows)]


def fewer_rows(rng: random.Random, rows: Rows) -> Rows:
    keep = rng.choice(KEEP)
    return [row for row in rows if rng.random() < keep]


def fewer_cells(rng: random.Random, rows: Rows, keep: float | None = None) -> Rows:
    keep = keep or rng.choice(KEEP)
    kept = {cell for cell in dict.fromkeys(map(cell_of, rows)) if rng.random() < keep}
    return [row for row in rows if cell_of(row) in kept]


def one_cell(rng: random.Random, rows: Rows) -> Rows:
    kept = cell_of(rng.choice(rows))
    return [row for row in rows if cell_of(row) == kept]


def fewer_values(rng: random.Random, rows: Rows) -> Rows:
    columns = parameters(EXPERIMENTS[rows[0].experiment]) + list(EXPERIMENTS[rows[0].experiment].details)
    several = [name for name in columns if len({getattr(row, name) for row in rows}) > 1]
    if not several:
        return rows
    column = rng.choice(several)
    kept = some(rng, [getattr(row, column) for row in rows])
    return [row for row in rows if getattr(row, column) in kept]


def fewer_metrics(rng: random.Random, rows: Rows) -> Rows:
    kept = some(rng, [row.metric for row in rows])
    return [row for row in rows if row.metric in kept]


def lost_cells(rng: random.Random, rows: Rows) -> Rows:
    keep = rng.choice([0.0, *KEEP])
    status = {cell: "" if rng.random() < keep else a_status(rng) for cell in dict.fromkeys(map(cell_of, rows))}
    found, told = [], set()
    for row in rows:
        cell = cell_of(row)
        if not status[cell]:
            found.append(row)
        elif cell not in told:
            told.add(cell)
            details = dict.fromkeys(EXPERIMENTS[row.experiment].details, "")
            found.append(lost(row, status[cell], metric=WHOLE_CELL, unit="", **details))
    return found


def lost_rows(rng: random.Random, rows: Rows) -> Rows:
    keep = rng.choice(KEEP)
    return [row if rng.random() < keep else lost(row, a_status(rng)) for row in rows]


def lost_metrics(rng: random.Random, rows: Rows) -> Rows:
    gone, status = some(rng, [row.metric for row in rows]), a_status(rng)
    return [lost(row, status) if row.metric in gone else row for row in rows]


CHANGES: list[Callable[[random.Random, Rows], Rows]] = [
    no_rows,
    one_row,
    fewer_rows,
    fewer_cells,
    one_cell,
    fewer_values,
    fewer_metrics,
    lost_cells,
    lost_rows,
    lost_metrics,
]


def subset(rng: random.Random, rows: Mapping[str, Rows]) -> dict[str, Rows]:
    """What up to three changes leave of a few tables; the others are empty."""
    found: dict[str, Rows] = {name: [] for name in rows}
    for name in rng.sample(list(rows), TABLES):
        left = fewer_cells(rng, rows[name], keep=0.1) if len(rows[name]) > LARGE else rows[name]
        for change in rng.choices(CHANGES, k=rng.choice([0, 1, 1, 2, 3])):
            left = change(rng, left) if left else left
        faults = {first_fault(EXPERIMENTS[name], row) for row in left if row.status != "ok"} - {None}
        assert not faults, faults
        found[name] = left
    return found


def pieces(
    plan: Plan, rows: Mapping[str, Rows], trace: str, folder: Path, printed: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All that the pipeline makes of rows: self-checks, figures (into a folder), the report, if it is to be printed."""
    tables = {name: frame(name, there) for name, there in rows.items()}
    checks: list[Check] = []
    for module in modules("scripts.checks"):
        yield module, partial(run_checks, module, tables, checks)
    for name, figure in CONTENTS.figures.items():
        sources = figure.sources({key: key for key in rows}, trace)
        if rows.get(figure.table) or rows.get(figure.beside):
            yield name, partial(draw, figure.script, figure.options, str(folder / f"{name}.svg"), **sources)
    outcomes = DataFrame(map(asdict, checks), columns=["check", "outcome", "detail"])
    yield "report", partial(legible_report, plan, tables, outcomes, folder if printed else None)


def run_checks(module: str, tables: Mapping[str, DataFrame], checks: list[Check]) -> None:
    """Add the outcomes of a module's self-checks."""
    checks.extend(importlib.import_module(module).checks(tables))


def legible_report(plan: Plan, tables: Mapping[str, DataFrame], checks: DataFrame, folder: Path | None = None) -> None:
    """Render the report, in which nothing may be printed that is no number; typeset it in a folder, if one is given."""
    text = render(CONTENTS, plan, tables, cover(plan, tables), checks, dict.fromkeys(tables, ()))
    check_numbers(text)
    if folder:
        typeset_without_pictures(text, folder, folder / plan.results / "figures")


def legible_figure(figure: Figure, *args: Any, **options: Any) -> None:
    """Lay out a figure as for saving, without the bytes; nothing may be written in it that is no number."""
    figure.draw_without_rendering()
    check_numbers("\n".join(text.get_text() for text in figure.findobj(Text)))


def check_numbers(text: str) -> None:
    """Check that a text has a number wherever it says that it has.

    Raises:
        ValueError: it has not, with each place.
    """
    if found := NO_NUMBER.findall(text):
        raise ValueError(f"prints {' | '.join(found)}")


def typeset_without_pictures(text: str, project: Path, pictures: Path) -> None:
    """Typeset a report in a folder that stands for the project's, with empty pictures."""
    shutil.copytree(ROOT / "report", project / "report", dirs_exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    for name in CONTENTS.figures:
        (pictures / f"{name}.svg").write_text(EMPTY_PICTURE)
    source = project / "writeup.typ"
    source.write_text(text, encoding="utf-8")
    with contextlib.chdir(project):
        typeset(source, project / "writeup.pdf")


def crashes(seed: int, folder: Path, printed: bool = False) -> Iterator[tuple[str, Exception]]:
    """What cannot be made of the tables of a seed, and why not."""
    rng = random.Random(seed)
    whole = source(rng.choice(SOURCES))
    rows = subset(rng, whole.rows)
    loaded = mock.patch("scripts.views.data.read_table", lambda kind, path: rows[kind.name])
    unsaved = mock.patch.object(Figure, "savefig", legible_figure)
    with loaded, unsaved, contextlib.chdir(ROOT):
        for name, make in pieces(whole.plan, rows, rng.choice(TRACES), folder, printed):
            try:
                make()
            except Exception as error:
                yield name, error


def told(name: str, error: Exception) -> str:
    """A crash in a line: what crashed, how, and the last places of the project and its templates."""
    places = [at for at in traceback.extract_tb(error.__traceback__) if str(ROOT) in at.filename]
    where = " < ".join(f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in places[:-4:-1])
    return f"{name}: {type(error).__name__}: {str(error)[:300]} | {where}"


def main(first: int, last: int, step: int = 1) -> None:
    """Print what crashed for each seed, each kind of crash once."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last, step):
            texts = [told(*crash) for crash in crashes(seed, Path(folder), printed=True)]
            print(seed, *(f"\n    {text}" for text in texts if text not in found), flush=True)
            found.update(texts)
    print(f"{len(found)} different crashes")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
