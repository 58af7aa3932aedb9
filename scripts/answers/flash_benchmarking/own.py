"""A user's own attention against the fastest of the others, for `flash_benchmarking`."""

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import contender_of
from cs336_systems.implementations import PARAMETER
from scripts.rendering.answer import NOTHING, Answer, Captioned, say
from scripts.rendering.markup import LONGEST_TABLE, Table, fixed_point
from scripts.views.attention_calls import PASSES, without_own
from scripts.views.attention_times import SHAPE
from scripts.views.data import one, reason, select
from scripts.views.own import own_rows
from scripts.views.spread import legend, marked
from scripts.views.verdicts import speed

ORDER = ["compiled_call", "precision", "causal", "d", "sequence", "batch_size", "heads"]
MOST_TELLING = {"compiled_call": False, "causal": False, "sequence": False, "d": True}
"""By which a shape comes first: the leaderboard's, or else the longest sequence."""


def own(table: DataFrame, known: DataFrame) -> dict[str, Answer]:
    """An answer for each of theirs."""
    cells = table[own_rows(table)].drop_duplicates([*SHAPE, PARAMETER])
    return {
        f"own_{place}": answer(table, known, cells_of_one)
        for place, (_, cells_of_one) in enumerate(cells.groupby(PARAMETER, sort=False), start=1)
    }


def answer(table: DataFrame, known: DataFrame, cells: DataFrame) -> Answer:
    """One of theirs at the shape that tells most, and at every other."""
    cell = cells.sort_values(list(MOST_TELLING), ascending=list(MOST_TELLING.values())).iloc[0]
    title = contender_of(cell[PARAMETER]).title
    mine, other = theirs(known, cell), fastest_other(known, cell)
    shape = f"{cell['batch_size'] * cell['heads']} × {cell['sequence']} tokens, d = {cell['d']}, {cell['precision']}"
    shown = own_table(table, known, cells.sort_values(ORDER))
    evidence = Captioned(
        shown,
        f"{title} against the fastest of the others at every shape: medians, both passes of the fastest and the ratio "
        f"on "
        f"the device. {legend(shown)}".strip(),
        long=True,
    )
    short = len(shown.rows) <= LONGEST_TABLE
    return Answer(
        asked=f"Your own attention, {title}",
        verdict=NOTHING if mine is None else say("{title} takes {time:ms}.", title=title, time=mine["median"]),
        more=speed(mine, other).sentence(title, name_of(other), f"at {shape}"),
        evidence=[evidence] if short else [],
        details=[] if short else [evidence],
        missing=f"{title}, at {shape}: {why(table, cell)}.",
    )


def theirs(known: DataFrame, cell: Series) -> Series | None:
    """A cell's times."""
    return one(known, **dict(cell[[*SHAPE, PARAMETER]]))


def fastest_other(known: DataFrame, cell: Series) -> Series | None:
    """Of those that are no user's own, the one with the least time in a cell's shape."""
    rows = without_own(select(known, **dict(cell[SHAPE])))
    return rows.sort_values("median").iloc[0] if len(rows) else None


def name_of(cell: Series | None) -> str:
    """What readers call a cell's implementation."""
    return "" if cell is None else contender_of(cell[PARAMETER]).title


def why(table: DataFrame, cell: Series) -> str:
    """Why a cell has no time."""
    return reason(select(table, **dict(cell[[*SHAPE, PARAMETER]])))


def own_table(table: DataFrame, known: DataFrame, cells: DataFrame) -> Table:
    """One line per cell."""
    body = []
    for _, cell in cells.iterrows():
        line = [
            f"{cell['precision']}{', compiled' if cell['compiled_call'] else ''}",
            *("causal" if cell["causal"] else "none", str(cell["d"]), str(cell["sequence"])),
            f"{cell['batch_size']} × {cell['heads']}",
        ]
        mine, other = theirs(known, cell), fastest_other(known, cell)
        if mine is None:
            body.append([*line, *[why(table, cell)] * (len(PASSES) + 3)])
            continue
        own_rows_ = select(table, **dict(cell[[*SHAPE, PARAMETER]]))
        line += [marked(one(own_rows_, metric=timed_pass)) or "–" for timed_pass in PASSES]
        told = speed(mine, other)
        line += [name_of(other) or "–", fixed_point(None if other is None else other["median"], 3)]
        body.append([*line, fixed_point(None if told.why_untold == "host-bound" else told.ratio, 2, "×")])
    header = ["precision", "mask", "d", "sequence", "batch × heads", "forward", "backward", "both"]
    groups = [("", 5), ("yours / ms", 3), ("fastest of the others", 2), ("", 1)]
    return Table([*header, "", "both / ms", "theirs / yours"], body, text_columns=2, groups=groups)
