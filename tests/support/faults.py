"""Faults that are planted in tables, and what the self-checks say of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.record.validation import STATISTICS
from scripts.checks import checks_of
from scripts.views.data import load_recorded
from tests.samples import ROOT

Tables = dict[str, DataFrame]
Fault = Callable[[Tables], Tables]
"""Gives the tables with a fault; those given stay as they are."""
NUMBERS = [*STATISTICS, "std"]


@cache
def recorded() -> Tables:
    """The tables recorded on an H200. Not to be changed: several tests share them."""
    return load_recorded(ROOT / "recorded/nvidia-h200/raw")


def failures(part: str, tables: Tables) -> list[str]:
    """The details of the failed checks of a module of scripts/checks."""
    found = checks_of(import_module(f"scripts.checks.{part}"), tables)
    return [check.detail for check in found if check.outcome == "failed"]


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, by what they have in each column."""

    table: str
    wanted: dict[str, Any]

    def index(self, table: DataFrame) -> pandas.Index:
        """Where they are: somewhere, or the fault would not be one."""
        for column, value in self.wanted.items():
            table = table[table[column].isin(value) if isinstance(value, list) else table[column] == value]
        assert len(table), self
        return table.index

    def change(self, change: Callable[[DataFrame, pandas.Index], DataFrame | None]) -> Fault:
        """The fault that these rows of a table are changed, in place or in what is returned."""

        def plant(tables: Tables) -> Tables:
            table = tables[self.table].copy()
            changed = change(table, self.index(table))
            return tables | {self.table: table if changed is None else changed}

        return plant


def rows(table: str, **wanted: Any) -> Rows:
    """The rows of a table that have a value, or one of a list, in each named column."""
    return Rows(table, wanted)


def put(place: Rows, **values: Any) -> Fault:
    """Write values into rows' columns, or what a function makes of the present ones."""

    def change(table: DataFrame, index: pandas.Index) -> None:
        for column, value in values.items():
            table.loc[index, column] = table.loc[index, column].map(value) if callable(value) else value

    return place.change(change)


def nudge(place: Rows, factor: float) -> Fault:
    """Multiply rows' means alone."""
    return put(place, mean=lambda mean: factor * mean)


def scale(place: Rows, factor: float) -> Fault:
    """Multiply rows, their samples included, so that each row agrees with itself."""
    return place.change(lambda table, index: multiply(table, index, factor))


def multiply(table: DataFrame, index: pandas.Index, factor: float) -> None:
    """Multiply all numbers of some rows of a table."""
    table.loc[index, NUMBERS] = table.loc[index, NUMBERS].astype(float) * factor
    table.loc[index, "samples"] = [
        format_samples([factor * sample for sample in parse_samples(text)]) for text in table.loc[index, "samples"]
    ]


def drop(place: Rows) -> Fault:
    """Leave rows out."""
    return place.change(lambda table, index: table.drop(index))


def relabel(place: Rows, **values: Any) -> Fault:
    """Add copies of rows with other labels, every number as it is."""
    return place.change(
        lambda table, index: pandas.concat([table, table.loc[index].assign(**values)], ignore_index=True)
    )


def swap(place: Rows, column: str, one: Any, other: Any) -> Fault:
    """Exchange two labels in the rows that have them, all numbers staying where they are."""

    def change(table: DataFrame, index: pandas.Index) -> None:
        labels = table.loc[index, column]
        assert {one, other} <= set(labels), place
        table.loc[index, column] = labels.replace({one: other, other: one})

    return place.change(change)


def copy(source: Rows, target: Rows, factor: float = 1.0) -> Fault:
    """Give the metrics of one cell the numbers of another, multiplied, samples included."""

    def change(table: DataFrame, index: pandas.Index) -> None:
        numbers = [*NUMBERS, "samples"]
        given = table.loc[source.index(table)].set_index("metric")[numbers]
        index = index[table.loc[index, "metric"].isin(given.index)]
        table.loc[index, numbers] = given.loc[table.loc[index, "metric"]].to_numpy()
        multiply(table, index, factor)

    return target.change(change)
