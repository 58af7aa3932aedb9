"""Faults that are planted in tables, and what the self-checks say of them."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.record.rows import parameters
from cs336_systems.record.validation import STATISTICS, Row
from scripts.checks import Check, checks_of, laws, name_row
from scripts.checks.law import SOME, Law, Statement
from scripts.views.cells import in_words
from scripts.views.data import frame, load_recorded
from tests.samples import ROOT, planned_rows

Tables = dict[str, DataFrame]
NUMBERS = [*STATISTICS, "std"]


@cache
def recorded(label: str = "nvidia-h200") -> Tables:
    """The tables recorded on a machine. Not to be changed: several tests share them."""
    return load_recorded(ROOT / "recorded" / label / "raw")


@cache
def on_a_cpu() -> Tables:
    """The tables of a CPU's smoke run. Not to be changed."""
    return {name: frame(name, planned_rows(name, "smoke")) for name in EXPERIMENTS}


def sound_tables(experiment: str) -> Tables:
    """The tables recorded on an H200, or, if it has no rows of an experiment yet, a CPU's."""
    return recorded() if len(recorded()[experiment]) else on_a_cpu()


def tables_of(experiment: str, rows: Iterable[Row]) -> Tables:
    """Tables of one experiment's rows alone."""
    return {name: frame(name, rows if name == experiment else []) for name in EXPERIMENTS}


def failures(part: str, tables: Tables) -> list[str]:
    """The details of the failed checks of a module of scripts/checks."""
    checks = checks_of(import_module(f"scripts.checks.{part}"), tables)
    return [check.detail for check in checks if check.outcome == "failed"]


def broken_laws(experiment: str, tables: Tables, sentence: str = "") -> list[str]:
    """The details of the failed checks of the laws of an experiment, under the sentences that begin with some words."""
    checks = law_checks(experiment, tables, sentence)
    return [check.detail for check in checks if check.outcome == "failed"]


def law_checks(experiment: str, tables: Tables, sentence: str = "") -> list[Check]:
    """The checks of the laws of an experiment alone, under the sentences that begin with some words."""
    of_it = {name: [law for law in each if law.experiment == experiment] for name, each in laws.LAWS.items()}
    return [Statement(name, each).check(tables) for name, each in of_it.items() if each and name.startswith(sentence)]


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, by what they have in each column."""

    table: str
    wanted: dict[str, Any]

    def within(self, tables: Tables) -> DataFrame:
        """These rows in tables."""
        table = tables[self.table]
        for column, value in self.wanted.items():
            table = table[table[column].isin(value) if isinstance(value, list) else table[column] == value]
        return table

    def index(self, table: DataFrame) -> pandas.Index:
        """Where they are in their table: somewhere, or the fault would not be one."""
        rows = self.within({self.table: table})
        assert len(rows), self
        return rows.index

    def change(self, change: Callable[[DataFrame, pandas.Index], DataFrame | None]) -> "Fault":
        """The fault that these rows of a table are changed, in place or in what is returned."""
        return Fault(self, change)


@dataclass(frozen=True)
class Fault:
    """A fault in some rows of a table."""

    place: Rows
    change: Callable[[DataFrame, pandas.Index], DataFrame | None]

    def __call__(self, tables: Tables) -> Tables:
        """The tables with the fault; those given stay as they are."""
        table = tables[self.place.table].copy()
        changed = self.change(table, self.place.index(table))
        return tables | {self.place.table: table if changed is None else changed}

    def cells(self, tables: Tables) -> set[str]:
        """The cells of these rows in words, without the fault and with it."""
        kind, before, after = EXPERIMENTS[self.place.table], tables[self.place.table], self(tables)[self.place.table]
        index = self.place.index(before)
        rows = pandas.concat([before.loc[index], after.loc[after.index.intersection(index)], after[len(before) :]])
        return {in_words(kind, cell) for cell in rows[parameters(kind)].itertuples(index=False, name=None)}


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


def beyond(law: Law, tables: Tables) -> Iterator[tuple[str, Fault]]:
    """Faults of a law's metric, by twice its tolerance too little and too much where it has such a limit, and cells."""
    readings = sorted(law.readings(tables), key=lambda each: each[1].value == 0)
    for sign in (-1, 1):
        for reading, bounds in readings:
            edge, limit = (bounds.least, bounds.low) if sign < 0 else (bounds.most, bounds.high)
            wanted = edge + 2 * (limit - edge) + sign * (limit == edge) * (1e-4 * edge or 1)
            details = {} if law.per else {name: reading.row[name] for name in EXPERIMENTS[law.experiment].details}
            cell = {name: reading.row[name] for name in parameters(EXPERIMENTS[law.experiment])}
            place = Rows(law.experiment, {**cell, **details, **law.where, "metric": law.metric})
            if math.isfinite(wanted) and wanted >= 0 and (sign > 0 or edge > SOME) and len(place.within(tables)):
                where = name_row(law.experiment, reading.row)
                if law.column == "n":
                    yield where, put(place, n=round(wanted) + sign)
                elif bounds.value:
                    yield where, scale(place, wanted / bounds.value)
                else:
                    yield where, put(place, **dict.fromkeys(STATISTICS, wanted))
                break
