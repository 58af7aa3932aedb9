"""Faults that are planted in recorded tables, and what of the pipeline notices them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import pandas
from pandas import DataFrame
from pydantic import ValidationError

from cs336_systems.discovery import modules
from cs336_systems.experiments.base import explain
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.record.rows import parameters, row_model
from cs336_systems.record.validation import STATISTICS, first_fault
from scripts.checks import checks_of
from scripts.coverage import cover
from scripts.views.data import load_recorded
from tests.samples import ROOT

Tables = dict[str, DataFrame]
NUMBERS = [*STATISTICS, "std"]


@cache
def recorded() -> Tables:
    """The tables recorded on an H200. Not to be changed: several tests share them."""
    return load_recorded(ROOT / "recorded/nvidia-h200/raw")


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, by what they have in each column."""

    table: str
    wanted: dict[str, Any]

    def index(self, tables: Tables) -> pandas.Index:
        """Where they are: somewhere, or the fault would not be one."""
        table = tables[self.table]
        for column, value in self.wanted.items():
            table = table[table[column].isin(value) if isinstance(value, list) else table[column] == value]
        assert len(table), self
        return table.index


def rows(table: str, **wanted: Any) -> Rows:
    """The rows of a table that have a value, or one of a list, in each named column."""
    return Rows(table, wanted)


def put(place: Rows, **values: Any) -> Callable[[Tables], None]:
    """Write values into rows' columns, or what a function makes of the present ones."""

    def plant(tables: Tables) -> None:
        index = place.index(tables)
        for column, value in values.items():
            present = tables[place.table].loc[index, column]
            tables[place.table].loc[index, column] = present.map(value) if callable(value) else value

    return plant


def lose(place: Rows, status: str) -> Callable[[Tables], None]:
    """Give rows a status and a reason in place of their numbers."""
    return put(place, **dict.fromkeys(NUMBERS), n=0, samples="", status=status, message="made up")


def scale(place: Rows, factor: float) -> Callable[[Tables], None]:
    """Multiply rows, their samples included, so that each row agrees with itself."""

    def plant(tables: Tables) -> None:
        multiply(tables[place.table], place.index(tables), factor)

    return plant


def multiply(table: DataFrame, index: pandas.Index, factor: float) -> None:
    """Multiply all numbers of some rows of a table."""
    table.loc[index, NUMBERS] = table.loc[index, NUMBERS].astype(float) * factor
    table.loc[index, "samples"] = [
        format_samples([factor * sample for sample in parse_samples(text)]) for text in table.loc[index, "samples"]
    ]


def nudge(place: Rows, factor: float) -> Callable[[Tables], None]:
    """Multiply rows' means alone."""

    def plant(tables: Tables) -> None:
        tables[place.table].loc[place.index(tables), "mean"] *= factor

    return plant


def drop(place: Rows) -> Callable[[Tables], None]:
    """Leave rows out."""

    def plant(tables: Tables) -> None:
        tables[place.table] = tables[place.table].drop(place.index(tables))

    return plant


def relabel(place: Rows, **values: Any) -> Callable[[Tables], None]:
    """Add copies of rows with other labels, every number as it is."""

    def plant(tables: Tables) -> None:
        table = tables[place.table]
        copies = table.loc[place.index(tables)].assign(**values)
        tables[place.table] = pandas.concat([table, copies], ignore_index=True)

    return plant


def swap(place: Rows, column: str, one: Any, other: Any) -> Callable[[Tables], None]:
    """Exchange two labels, all numbers staying where they are."""

    def plant(tables: Tables) -> None:
        labels = tables[place.table].loc[place.index(tables), column]
        assert {one, other} <= set(labels), place
        tables[place.table].loc[labels.index, column] = labels.replace({one: other, other: one})

    return plant


def copy(source: Rows, target: Rows, factor: float = 1.0) -> Callable[[Tables], None]:
    """Give the metrics of one cell the numbers of another, multiplied, samples included."""

    def plant(tables: Tables) -> None:
        numbers = [*NUMBERS, "samples"]
        table = tables[source.table]
        given = table.loc[source.index(tables)].set_index("metric")[numbers]
        for index in target.index(tables):
            if (metric := table.loc[index, "metric"]) in given.index:
                table.loc[index, numbers] = given.loc[metric].to_numpy()
                if factor != 1:
                    scale(Rows(source.table, target.wanted | {"metric": metric}), factor)(tables)

    return plant


class Watched(dict[str, DataFrame]):
    """Tables that keep the names of those that were asked for by name, and whether all were, one by one."""

    def __init__(self, tables: Tables):
        super().__init__(tables)
        self.named: set[str] = set()
        self.all = False

    def __getitem__(self, name: str) -> DataFrame:
        self.named.add(name)
        return super().__getitem__(name)

    def items(self) -> Any:
        """Each table with its name."""
        self.all = True
        return super().items()


@cache
def watched(module: str) -> Watched:
    """The tables that a module of checks has asked for."""
    empty = {name: DataFrame(columns=[*row_model(kind).model_fields, "label"]) for name, kind in EXPERIMENTS.items()}
    tables = Watched(empty)
    list(checks_of(import_module(module), tables))
    return tables


def noticed(plan: Plan, before: Tables, name: str, after: DataFrame) -> str:
    """Name what notices that a table differs: the record's validation, the coverage or a self-check; or nothing: empty.

    Only what could notice it is asked: checks of this table, which get those tables besides with which they compare it.
    """
    return next(_complaints(plan, before, name, after), "")


def _complaints(plan: Plan, before: Tables, name: str, after: DataFrame) -> Iterator[str]:
    yield from _of_the_record(name, before[name], after)
    of_this = replace(plan, jobs={name: plan.jobs[name]})
    if not cover(of_this, {name: after}).equals(cover(of_this, {name: before[name]})):
        yield "coverage"
    for module in modules("scripts.checks"):
        asked = watched(module)
        if name in asked.named or asked.all:
            tables = {key: table if key in asked.named else table.iloc[:0] for key, table in before.items()}
            tables[name] = after
            yield from (check.check for check in checks_of(import_module(module), tables) if check.outcome == "failed")


def _of_the_record(name: str, before: DataFrame, after: DataFrame) -> Iterator[str]:
    """Complaints of reading a CSV of these rows."""
    kind = EXPERIMENTS[name]
    columns = list(row_model(kind).model_fields)
    if after.duplicated([*parameters(kind), "metric", *kind.details]).any():
        yield f"{name}: a metric twice"
    for row in changed_rows(before[columns], after[columns]).to_dict("records"):
        present = {column: value for column, value in row.items() if not pandas.isna(value)}
        try:
            fault = first_fault(kind, row_model(kind).model_validate(present))
        except ValidationError as error:
            fault = explain(error)
        if fault:
            yield f"{name}: {fault}"


def changed_rows(before: DataFrame, after: DataFrame) -> DataFrame:
    """The rows that are not as they were at their place."""
    same = before.reindex(after.index)
    return after[~((after == same) | (after.isna() & same.isna())).all(axis=1)]
