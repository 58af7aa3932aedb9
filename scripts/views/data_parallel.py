"""Data-parallel wrappers by kind; figures and tables show the fastest setting of each."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import BASELINE, CONTENDERS, DataParallelTraining
from scripts.rendering.answer import Answer, Captioned, Evidence, Facts, say
from scripts.rendering.grid import NONE, cut, grid
from scripts.rendering.markup import Typst
from scripts.views.comparison import OWN, Duel, compared, contenders, device_bound, fastest, names_in, preferred_cells
from scripts.views.comparison_tables import COLUMNS, STARS, contender_table, missing

OURS = {each.name: each.title for each in CONTENDERS if each.in_verdicts}
"""This project's wrappers, and their names for readers."""
PYTORCH = list(dict.fromkeys(declared.name for declared in CONTENDERS if declared.foreign))
WITHOUT_COMMUNICATION = {"no communication": [BASELINE]}
BEST_BUCKETS = {"bucketed, best": ["bucketed"]}
BEST_PYTORCH = {"PyTorch's, best": PYTORCH}
NOTICED = 0.5
"""Smallest difference, in ms, between parts of two profiled steps that is mentioned."""
PARTS = {
    "idle": "idle time",
    "uncovered": "uncovered communication",
    "stretched": "compute",
}
"""The parts of a profiled step beyond the baseline's."""
STACK = ["compute", "stretched compute", "uncovered communication", "idle"]
"""The parts of a profiled step."""


def wrappers(tables: Mapping[str, DataFrame]) -> DataFrame:
    """All measured wrappers."""
    return contenders(DataParallelTraining, tables["data_parallel"])


def kinds(rows: DataFrame) -> dict[str, list[str]]:
    """The wrappers of each kind, by its name in figures: PyTorch's with default settings, and with their best ones."""
    return {
        **{title: [name] for name, title in OURS.items()},
        "PyTorch's, default": PYTORCH[:1],
        **BEST_PYTORCH,
        **{name: [name] for name in names_in(rows, OWN)},
    }


def shown_in_timelines(cell: DataFrame) -> DataFrame:
    """Of a cell's contenders, the fastest of each kind; for PyTorch, only the best."""
    found = [fastest(cell, names) for names in kinds(cell).values() if names != PYTORCH[:1]]
    return cell.loc[[row.name for row in found if row is not None]]


def stacked_cells(rows: DataFrame) -> list[DataFrame]:
    """The device-bound cells with a profiled baseline and profiled wrappers to compare with it."""
    profiled = device_bound(rows[rows["timeline_length"].notna()])
    return [cell for cell in preferred_cells(profiled) if cell["stretched"].notna().any()]


def stack(cell: DataFrame, row: Series) -> list[float]:
    """The parts of a profiled step in the order of STACK, ms; they add up to its length."""
    baseline = fastest(cell, [BASELINE])
    assert baseline is not None
    uncovered = row["communication"] - row["hidden"]
    parts = [min(row["compute"], baseline["compute"]), max(row["compute"] - baseline["compute"], 0.0), uncovered]
    return [*parts, row["timeline_length"] - row["compute"] - uncovered]


def across_cells(table: DataFrame, rows: DataFrame, shown: Mapping[str, Sequence[str]]) -> Captioned:
    """A row per kind of wrapper: the baseline, those shown, the user's own.

    Columns: its fastest step and its exposed communication; the reason if it was measured in no device-bound cell.
    """
    cells = preferred_cells(device_bound(rows))
    every = compared(DataParallelTraining, table)
    own = [name for name in dict.fromkeys(every["contender"]) if name not in {"", *(each.name for each in CONTENDERS)}]
    lines = []
    for title, names in {**WITHOUT_COMMUNICATION, **shown, **{name: [name] for name in own}}.items():
        found = [fastest(cell, names) for cell in cells]
        lost = every[every["contender"].isin(names) & (every["metric"] == "step") & (every["status"] != "ok")]
        measured = any(row is not None for row in found)
        if measured or len(lost):
            line = {"title": title, "message": "" if measured else lost["message"].iloc[0]}
            for place, row in enumerate(found):
                line |= {f"step{place}": NONE, f"exposed{place}": nan}
                if row is not None:
                    spread = f"{cut(row['median'])} ({cut(row['p20'])}–{cut(row['p80'])})"
                    line |= {f"step{place}": spread, f"exposed{place}": row["exposed"]}
            lines.append(line)
    columns = {
        cell["cell"].iloc[0]: {"step": f"{{step{place}}}", "exposed": f"{{exposed{place}:cut}}"}
        for place, cell in enumerate(cells)
    }
    return Captioned(
        grid(DataFrame(lines), {"": {"ms": "{title}"}, **columns}),
        f"Median step and its 20th to 80th percentile{in_device_bound_cells(rows)}, each wrapper at its fastest "
        f"setting; {' or '.join(str(n) for n in sorted(set(rows['n'].astype(int))))} steps each.",
        legend={"exposed": "Exposed: its extra time over the step without communication"},
    )


def in_device_bound_cells(rows: DataFrame) -> str:
    """Which cells a table has, of those that a GPU measured."""
    return " in device-bound cells" if rows["gpu"].any() else ""


def duel_answer(
    asked: str,
    found: Sequence[Duel],
    names: tuple[str, str],
    evidence: Evidence,
    more: Sequence[str],
    reason: Sequence[str],
    **facts: Any,
) -> Answer:
    """An answer about two wrappers, with the readers' `names`: which one is faster, and why.

    The verdict is about the first duel. Sentences can name the `facts`, the rows `own` and `other`, and what
    `elsewhere` and `difference` return.
    """
    own, other, speed = found[0].first, found[0].other, found[0].speed
    known = Facts(own=own, other=other, elsewhere=elsewhere(found), difference=difference(own, other, *names), **facts)
    where = "" if speed.faster is None else f"({found[0].cell})"
    return Answer(asked, speed.sentence(*names, where), known.say(*more), evidence, known.say(*reason))


def every_row(table: DataFrame, rows: DataFrame) -> Captioned:
    """All measured rows of wrappers, including host-bound cells."""
    shown = contender_table(DataParallelTraining, table, rows, COLUMNS)
    return Captioned(
        shown, "All wrappers in every measured cell; only device-bound ones get a verdict.", True, legend=STARS
    )


def why_untold(table: DataFrame, rows: DataFrame) -> str:
    """Why there is no verdict."""
    if not len(rows):
        return missing(table)
    if not len(device_bound(rows)):
        return "Measured only in host-bound cells, which depend on the host's speed: no verdict."
    return "Not measured in any device-bound cell."


def elsewhere(found: Sequence[Duel]) -> Typst:
    """The results of all cells except the first."""
    return say("In other settings: {others:listing}.", others=[_outcome(duel) for duel in found[1:]])


def _outcome(duel: Duel) -> Typst:
    speed = duel.speed
    if speed.faster is None or speed.ratio is None:
        return say("{verdict} ({cell})", verdict=speed.why or "on par", cell=duel.cell)
    if speed.faster:
        return say("{ratio:times} ({cell})", ratio=speed.ratio, cell=duel.cell)
    return say("slower, {ratio:times} the time ({cell})", ratio=1 / speed.ratio, cell=duel.cell)


def against_baseline(row: Series, who: str) -> Typst:
    """The parts of a contender's profiled step beyond the one without communication."""
    return difference(row, dict.fromkeys(PARTS, 0.0), who, "the step without communication")


def difference(row: Series, other: Series | Mapping[str, float], who: str, against: str) -> Typst:
    """The parts that are shorter in a contender's profiled step than in another's, and those that are longer."""
    changes = {what: row[part] - other[part] for part, what in PARTS.items()}
    saved = [say("{ms:ms} of {what}", ms=-ms, what=what) for what, ms in changes.items() if ms < -NOTICED]
    added = [say("{ms:ms} of {what}", ms=ms, what=what) for what, ms in changes.items() if ms > NOTICED]
    ends = [say("saves {saved:listing}", saved=saved), say("adds {added:listing}", added=added)]
    end = Typst(" and ".join(filter(None, ends)))
    return say("Against {against}, the profiled step with {who} {end}.", who=who, end=end, against=against)
