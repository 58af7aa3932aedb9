"""A user's own attention against the fastest of the others at every shape, for `flash_benchmarking`."""

from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import Flash, contender_of
from cs336_systems.implementations import PARAMETER
from cs336_systems.measure.record import parameters
from scripts.rendering.markup import LONGEST_TABLE, Table, fixed_point
from scripts.views.attention_calls import PASSES, median_time, without_own
from scripts.views.data import one, ratio, reason, select
from scripts.views.own import own_rows
from scripts.views.spread import legend, marked

SHAPE = [name for name in parameters(Flash) if name not in (PARAMETER, "rep")]
ORDER = [PARAMETER, "compiled_call", "precision", "causal", "d", "sequence", "batch_size", "heads"]


def own_answers(table: DataFrame) -> dict[str, Any]:
    """Every cell of theirs, those without a time with the reason, and how each compares at one shape."""
    rows = table[own_rows(table)]
    cells = rows.drop_duplicates([*SHAPE, PARAMETER]).sort_values(ORDER)
    shown = own_table(table, cells) if len(cells) else None
    return {
        "own": shown,
        "own_marks": legend(shown),
        "own_is_long": len(cells) > LONGEST_TABLE,
        "own_verdicts": [verdict(table, its_cells) for _, its_cells in cells.groupby(PARAMETER)],
    }


def own_table(table: DataFrame, cells: DataFrame) -> Table:
    """One line per cell."""
    body = []
    for _, cell in cells.iterrows():
        own = select(table, **dict(cell[[*SHAPE, PARAMETER]]))
        line = [
            f"{contender_of(cell[PARAMETER]).title}{', compiled' if cell['compiled_call'] else ''}",
            *(cell["precision"], "causal" if cell["causal"] else "none"),
            *(str(cell["d"]), str(cell["sequence"]), f"{cell['batch_size']} × {cell['heads']}"),
        ]
        median, fastest = median_time(own, "forward_backward"), fastest_other(table, cell)
        if median is None:
            body.append([*line, *[reason(own)] * (len(PASSES) + 3)])
            continue
        line += [marked(one(own, metric=timed_pass)) or "–" for timed_pass in PASSES]
        line += [fastest["name"], fixed_point(fastest["median"], 3)] if fastest else ["–", "–"]
        body.append([*line, fixed_point(ratio(fastest["median"], median) if fastest else None, 2, "×")])
    header = ["", "precision", "mask", "d", "sequence", "batch × heads", "forward", "backward", "both"]
    groups = [("", 6), ("yours / ms", 3), ("fastest of the others", 2), ("", 1)]
    return Table([*header, "", "both / ms", "theirs / yours"], body, text_columns=3, groups=groups)


def fastest_other(table: DataFrame, cell: Series) -> dict[str, Any] | None:
    """Of those that are no user's own, the one with the least time in a cell's shape: its name and ms."""
    rows = without_own(select(table, metric="forward_backward", **dict(cell[SHAPE])))
    if not len(rows):
        return None
    best = rows.sort_values("median").iloc[0]
    return {"name": contender_of(best[PARAMETER]).title, "median": float(best["median"])}


def verdict(table: DataFrame, cells: DataFrame) -> dict[str, Any]:
    """How one compares with the fastest of the others: at the leaderboard's shape, or else at the longest sequence."""
    order = {"compiled_call": False, "causal": False, "sequence": False, "d": True}
    cell = cells.sort_values(list(order), ascending=list(order.values())).iloc[0]
    own = select(table, **dict(cell[[*SHAPE, PARAMETER]]))
    median, fastest = median_time(own, "forward_backward"), fastest_other(table, cell)
    return {
        "name": contender_of(cell[PARAMETER]).title,
        "shape": f"{cell['batch_size'] * cell['heads']} × {cell['sequence']} tokens, d = {cell['d']}"
        f", {cell['precision']}{', compiled' if cell['compiled_call'] else ''}",
        "median": median,
        "why": None if median else reason(own).removeprefix("not measured: "),
        "fastest": fastest,
        "gain": ratio(fastest["median"], median) if fastest else None,
    }
