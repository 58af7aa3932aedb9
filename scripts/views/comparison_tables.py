"""The common part of sections that compare contenders: their table, their settings, and why there is none."""

from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.experiments.base import ModelExperiment
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.rendering.answer import say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table
from scripts.views.communication import BACKENDS
from scripts.views.comparison import Kind, backend_of, compared, described, marked
from scripts.views.data import not_measured, reason, select

STEP = {"median": "{median:cut}{star}", "p20–p80": "{p20:cut}–{p80:cut}"}
MEMORY = {"peak": "{peak_memory:GiB}", "outside": "{outside_memory:GiB}"}
STARS = {
    "outside": "outside: memory outside PyTorch's allocator, in excess of a step without communication",
    "*": "*: percentiles more than 5 % of the median apart",
}


def contender_table(kind: Kind, table: DataFrame, rows: DataFrame, columns: Columns) -> Table:
    """Contenders cell by cell, with the reasons of those that could not be measured in these cells.

    Args:
        kind: the experiment.
        table: its rows.
        rows: of `contenders`.
        columns: those that are empty for all rows are omitted.
    """
    if not len(rows):
        return Table([], [])
    lost = compared(kind, table)
    lost = described(kind, lost[(lost["metric"] == "step") & (lost["status"] != "ok")])
    headings = {row["cell"]: marked(row) for _, row in rows.iterrows()}
    lost = lost[lost["cell"].isin(headings)]
    shown = described(kind, pandas.concat([each for each in (rows.assign(message=""), lost) if len(each)]))
    shown = shown.assign(heading=shown["cell"].map(headings))
    return grid(shown, {"": {"": "{title}"}, **columns}, by="heading")


def missing(table: DataFrame) -> str:
    """Why there is nothing to show, as a sentence."""
    lost = select(table, metric=WHOLE_CELL)
    why = reason(lost.iloc[:1]) if len(lost) else not_measured(table)
    return f"{why[:1].upper()}{why[1:]}."


def setting(rows: DataFrame) -> dict[str, Any] | None:
    """The settings common to all contenders; None if there are none."""
    if not len(rows):
        return None
    row = rows.iloc[0]
    each = "GPU" if row["gpu"] else "process"
    vocabulary = "" if row["vocab_size"] == ModelExperiment.vocab_size else " (vocabulary {row[vocab_size]})"
    return {
        "gpu": bool(row["gpu"]),
        "sequences": say(f"{{row[batch_size]}} sequences of {{row[context]}} tokens per {each}{vocabulary}", row=row),
        "backend": BACKENDS[backend_of(row)],
        "size": row["label"],
        "rounds": int(row["rounds"]),
        "steps": int(row["steps"]),
        "warmup": int(row["warmup"]),
        "bf16": "bf16" in set(rows["precision"]),
        "compiled": "compiled" in rows and bool(rows["compiled"].any()),
        "profiled": bool(rows["timeline_length"].notna().any()),
    }
