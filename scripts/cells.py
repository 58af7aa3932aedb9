"""Cells of the experiments on the language model: one by one, and in words."""

from collections.abc import Iterator

from pandas import DataFrame, Series

from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.record import parameters
from scripts.data import MODES, select

ATTENTIONS = {"plain": "", "flash": "our attention", "sdpa": "SDPA"}


def cells(table: DataFrame, kind: type[Experiment], metric: str) -> Iterator[tuple[Series, DataFrame]]:
    """Each cell of an experiment that has one row of a metric: this row, and all rows of the cell."""
    for _, row in select(table, metric=metric, status="ok").iterrows():
        yield row, select(table, **{name: row[name] for name in parameters(kind)})


def name_cell(row: Series) -> str:
    """The cell of a row in words: its size, context and precision, and whatever else is not usual."""
    segment = row.get("segment")
    words = [
        row["label"],
        f"context {row['context']}",
        row["precision"],
        "compiled" if row.get("compiled") else "",
        ATTENTIONS[row["attention"]],
        f"segments of {segment}" if segment else "",
        MODES[row["mode"]] if "mode" in row else "",
        f"cold after {row['warmup']} warm-up steps" if row.get("cold_start") else "",
    ]
    return ", ".join(word for word in words if word)
