"""A user's own attention against the fastest other implementation, for `flash_benchmarking`."""

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import contender_of
from cs336_systems.implementations import PARAMETER
from scripts.rendering.answer import Answer, Captioned, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import LONGEST_TABLE
from scripts.views.attention_calls import PASSES, titles, without_own
from scripts.views.attention_times import SHAPE
from scripts.views.data import first, one, reason, select
from scripts.views.own import own_rows
from scripts.views.spread import MARKS, marked
from scripts.views.verdicts import Speed, against

MOST_TELLING = {"compiled_call": False, "causal": False, "sequence": False, "d": True}
"""Sort key of shapes: the leaderboard's first, then the longest sequence."""
OWN: Columns = {
    "": {
        "precision": "{how}",
        "mask": "{mask}",
        "d": "{d}",
        "sequence": "{sequence}",
        "batch × heads": "{batch_size} × {heads}",
    },
    "yours / ms": {"forward": "{forward}", "backward": "{backward}", "both": "{forward_backward}"},
    "fastest of the others": {"": "{rival}", "both / ms": "{theirs:.3f}"},
    " ": {"theirs / yours": "{ratio:.2f}×"},
}


def own(table: DataFrame, known: DataFrame) -> dict[str, Answer]:
    """An answer for each of a user's implementations."""
    cells = table[own_rows(table)].drop_duplicates([*SHAPE, PARAMETER])
    return {
        f"own_{place}": answer(table, known, cells_of_one)
        for place, (_, cells_of_one) in enumerate(cells.groupby(PARAMETER, sort=False), start=1)
    }


def answer(table: DataFrame, known: DataFrame, cells: DataFrame) -> Answer:
    """A user's implementation at the most informative shape, and at all others."""
    cells = cells.sort_values(list(MOST_TELLING), ascending=list(MOST_TELLING.values()))
    cell, title = cells.iloc[0], titles(table)[cells[PARAMETER].iloc[0]]
    mine, rival, speed = met(known, cell)
    shape = f"{cell['batch_size'] * cell['heads']} × {cell['sequence']} tokens, d = {cell['d']}, {cell['precision']}"
    evidence = Captioned(
        grid(DataFrame([line(table, known, each) for _, each in cells.iterrows()]), OWN, text_columns=5),
        f"{title} against the fastest of the others at every shape: medians, both passes of the fastest and the ratio "
        "on the device.",
        long=True,
        legend=MARKS,
    )
    long = len(cells) > LONGEST_TABLE
    return Answer(
        asked=f"Your own attention, {title}",
        verdict=say("{title} takes {mine[median]:ms}.", title=title, mine=mine),
        more=speed.sentence(f"your {title}", name_of(rival), f"at {shape}"),
        missing=f"{title}, at {shape}: {reason(rows_of(table, cell))}.",
        evidence=[] if long else evidence,
        details=evidence if long else [],
    )


def rows_of(table: DataFrame, cell: Series) -> DataFrame:
    """The rows of a cell in another table."""
    return select(table, **dict(cell[[*SHAPE, PARAMETER]]))


def met(known: DataFrame, cell: Series) -> tuple[Series | None, Series | None, Speed]:
    """A cell's times, the times of the fastest other implementation at its shape, and which is faster."""
    mine = first(rows_of(known, cell))
    rival = first(without_own(select(known, **dict(cell[SHAPE]))).sort_values("median"))
    return mine, rival, against(mine, rival)


def name_of(cell: Series | None) -> str:
    """The title of a cell's implementation."""
    return "–" if cell is None else contender_of(cell[PARAMETER]).title


def line(table: DataFrame, known: DataFrame, cell: Series) -> dict[str, object]:
    """The table's line of a cell."""
    mine, rival, speed = met(known, cell)
    rows = rows_of(table, cell)
    return {
        **cell,
        "how": cell["precision"] + (", compiled" if cell["compiled_call"] else ""),
        "mask": "causal" if cell["causal"] else "none",
        "message": reason(rows) if mine is None else "",
        **{each: marked(one(rows, metric=each)) or "–" for each in PASSES},
        "rival": name_of(rival),
        "theirs": None if rival is None else rival["median"],
        "ratio": None if speed.why else speed.ratio,
    }
