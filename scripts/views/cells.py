"""Cells of experiments: one by one, side by side, and in words."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.contender import Declared
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import size_name
from scripts.views.data import select

CONTENDER = ("rung", "wrapper", "contender", "bucket_mb")
"""Details that distinguish the contenders of one launch, each with its own metrics."""


def cell_of(kind: type[Experiment], row: Mapping[str, Any] | Series) -> Any:
    """The cell of a row: the experiment with its parameters."""
    return kind(**{name: row[name] for name in parameters(kind)})


def contender_key(row: Mapping[str, Any] | Series) -> str:
    """The contender of a row in its launch, as `Declared.key`; empty if the launch has only one."""
    return " ".join(str(row[name]) for name in CONTENDER if row.get(name))


def declared(kind: Any, row: Mapping[str, Any] | Series) -> Declared | None:
    """The declaration of a row's contender; None for a user's own."""
    key = contender_key(row)
    return next((each for each in kind.contenders if each.key == key), None)


def cells(table: DataFrame, kind: type[Experiment], metric: str) -> Iterator[tuple[Series, DataFrame]]:
    """Each cell of an experiment that has a single row of a metric: this row, and all rows of the cell."""
    for _, rows in table.groupby(parameters(kind), sort=False):
        for _, row in select(rows, metric=metric, status="ok").iterrows():
            yield row, rows


def side_by_side(table: DataFrame, kind: type[Experiment], column: str) -> DataFrame:
    """One row per cell, its parameters the index, with a statistic of each metric that no details divide."""
    whole = (table[list(kind.details)] == "").all(axis=1)
    rows = table[whole & (table["status"] == "ok") & table[column].notna()]
    return rows.pivot(index=parameters(kind), columns="metric", values=column)


def wide(
    table: DataFrame,
    keys: list[str],
    metrics: list[str],
    main: str,
    others: list[str],
    statistic: str = "median",
) -> DataFrame:
    """One row per cell that has a main metric, with a statistic of each metric, NaN where it was not measured.

    Args:
        table: rows of an experiment.
        keys: the columns that identify cells; they become the index.
        metrics: those that become columns.
        main: the metric that a cell must have.
        others: columns of its row, which are added.
        statistic: the statistic of the metrics.
    """
    rows = table[table["metric"].isin([*metrics, main]) & (table["status"] == "ok") & table[statistic].notna()]
    statistics = rows.pivot(index=keys, columns="metric", values=statistic).reindex(columns=metrics)
    return statistics.join(select(rows, metric=main).set_index(keys)[others], how="inner")


def in_words(kind: type[Experiment], values: Any) -> str:
    """A cell of any experiment: its name, and each parameter whose value is not the default.

    Args:
        kind: the experiment.
        values: the cell's parameters in column order, or, as pandas indexes by it, its only one.
    """
    words = [
        f"{field.name} {size_name(value) if field.name == 'size' else value}"
        for field, value in zip(
            dataclasses.fields(kind), values if isinstance(values, tuple) else (values,), strict=True
        )
        if value != field.default
    ]
    return f"{kind.name} ({', '.join(words) or 'defaults'})"
