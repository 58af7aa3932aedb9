"""Data-parallel wrappers by kind; figures and tables show the fastest setting of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import BASELINE, CONTENDERS, DataParallelTraining
from scripts.rendering.answer import Answer, Captioned, Facts, say
from scripts.rendering.grid import Columns
from scripts.rendering.markup import Typst
from scripts.views.comparison import OWN, Duel, contenders, device_bound, fastest, names_in, preferred_cells
from scripts.views.comparison_tables import MEMORY, STARS, STEP, contender_table, missing
from scripts.views.verdicts import LEAST

OURS = {each.name: each.title for each in CONTENDERS if each.in_verdicts}
"""This project's wrappers, and their names for readers."""
PYTORCH = list(dict.fromkeys(declared.name for declared in CONTENDERS if declared.foreign))
NOTICED = 0.5
"""Smallest difference, in ms, between parts of two profiled steps that is mentioned."""
PARTS = {
    "idle": "idle time",
    "uncovered": "uncovered communication",
    "stretched": "compute",
}
"""The parts of a profiled step beyond the baseline's."""
COLUMNS: Columns = {
    "step / ms": STEP | {"exposed": "{exposed:cut}"},
    "profiled step / ms": {part: f"{{{part}:cut}}" for part in reversed(PARTS)}
    | {"hidden / %": "{hidden_share:share}"},
    "GiB": MEMORY,
}


def wrappers(tables: Mapping[str, DataFrame]) -> DataFrame:
    """All measured wrappers."""
    return contenders(DataParallelTraining, tables["data_parallel"])


def fastest_of_each(cell: DataFrame) -> DataFrame:
    """The fastest of each kind of a cell's contenders; for PyTorch, its default settings and its fastest."""
    kinds = [[BASELINE], *([name] for name in OURS), PYTORCH[:1], PYTORCH, *([name] for name in names_in(cell, OWN))]
    rows = [fastest(cell, names) for names in kinds]
    return cell.loc[list(dict.fromkeys(row.name for row in rows if row is not None))]


def every_wrapper(table: DataFrame, rows: DataFrame) -> Captioned:
    """The fastest of each kind in every device-bound cell, and why others were not measured."""
    shown = pandas.concat(map(fastest_of_each, preferred_cells(device_bound(rows))))
    return Captioned(
        contender_table(DataParallelTraining, table, shown, COLUMNS),
        "The wrappers of this section and the next four sections, each at its fastest setting"
        f"{' in device-bound cells' if rows['gpu'].any() else ''}: median and 20th and 80th percentiles of "
        f"{' or '.join(str(n) for n in sorted(set(rows['n'].astype(int))))} steps.",
        legend={
            "exposed": "Exposed: time beyond the baseline's",
            "stretched": "stretched, idle: compute and idle time beyond the baseline's; uncovered: communication that "
            "overlaps no compute; hidden: share of communication that overlaps compute",
            **STARS,
        },
    )


def duel_answer(
    asked: str,
    duels: Sequence[Duel],
    names: tuple[str, str],
    *,
    more: Sequence[str],
    reason: Sequence[str],
    **facts: Any,
) -> Answer:
    """An answer about two wrappers, with the readers' `names`: which one is faster, and why.

    The verdict is about the first duel. Sentences can name the `facts`, the rows `own` and `other`, and what
    `elsewhere` and `difference` return.
    """
    own, other, speed = duels[0].first, duels[0].other, duels[0].speed
    known = Facts(own=own, other=other, elsewhere=elsewhere(duels), difference=difference(own, other, *names), **facts)
    where = "" if speed.faster is None else f"({duels[0].cell})"
    return Answer(asked, speed.sentence(*names, where), known.say(*more), reason=known.say(*reason))


def why_missing(table: DataFrame, rows: DataFrame) -> str:
    """Why there is no verdict."""
    if not len(rows):
        return missing(table)
    if not len(device_bound(rows)):
        return "Measured only in host-bound cells, which depend on the host's speed: no verdict."
    return "Not measured in any device-bound cell."


def elsewhere(duels: Sequence[Duel], against: str = "") -> Typst:
    """The results of all cells except the first."""
    words = f"In other settings{against}: {{others:listing}}."
    return say(words, others=[_outcome(duel) for duel in duels[1:]])


def _outcome(duel: Duel) -> Typst:
    speed = duel.speed
    if speed.faster is None or speed.ratio is None:
        return say("{verdict} ({cell})", verdict=speed.why or "on par", cell=duel.cell)
    gain = max(speed.ratio, 1 / speed.ratio)
    if gain < LEAST:
        word = "faster" if speed.faster else "slower"
        return say("{more:percent} {word} ({cell})", more=gain - 1, word=word, cell=duel.cell)
    words = "{gain:times} ({cell})" if speed.faster else "slower, {gain:times} the time ({cell})"
    return say(words, gain=gain, cell=duel.cell)


def difference(row: Series, other: Series, who: str, against: str) -> Typst:
    """The parts that are shorter in a contender's profiled step than in another's, and those that are longer."""
    changes = {what: row[part] - other[part] for part, what in PARTS.items()}
    saved = [say("{ms:ms} of {what}", ms=-ms, what=what) for what, ms in changes.items() if ms < -NOTICED]
    added = [say("{ms:ms} of {what}", ms=ms, what=what) for what, ms in changes.items() if ms > NOTICED]
    ends = [say("saves {saved:listing}", saved=saved), say("adds {added:listing}", added=added)]
    end = Typst(" and ".join(filter(None, ends)))
    return say("Compared with _{against}_, the profiled step of _{who}_ {end}.", who=who, end=end, against=against)
