"""Laws: the expected value of a measured number, by its closed form or by other numbers of its cell, with a
tolerance.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pandas import DataFrame, Series

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import Gpu, gpu_of
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Check, conclude, name_row
from scripts.views.data import measured_gpu, one, select

Expected = float | tuple[float, float] | None
"""A number, or the least and the most; None or NaN where a law does not apply."""
EQUAL = 1e-6
"""Relative difference explained by rounding."""
SOME = math.ulp(0.0)
"""The least number above 0."""


class Unlisted(Exception):
    """Raised for the data sheet of a GPU that is not listed, or of a CPU: the law does not apply."""


@dataclass(frozen=True)
class Reading:
    """A row to which a law applies."""

    experiment: str
    row: Series
    cell: DataFrame
    """All rows of its cell."""
    tables: Mapping[str, DataFrame]

    @property
    def kind(self) -> Any:
        """Its experiment's class."""
        return EXPERIMENTS[self.experiment]

    @property
    def sheet(self) -> Gpu:
        """The data sheet of its GPU; raises Unlisted if there is none."""
        if (gpu := gpu_of(self.row["gpu"])) is None:
            raise Unlisted
        return gpu

    def next_to(self, metric: str, **details: object) -> Series | None:
        """The row of another metric in its cell, with the same details except those given."""
        same = {name: self.row[name] for name in self.kind.details}
        return one(self.cell, metric=metric, **same | details)

    def of(self, metric: str, column: str = "mean", **details: object) -> float:
        """A statistic of that row; NaN if there is none."""
        row = self.next_to(metric, **details)
        return math.nan if row is None else float(row[column])


class Bounds(NamedTuple):
    """A reading's value, its expected range, and that range with tolerance."""

    value: float
    least: float
    most: float
    low: float
    high: float

    @property
    def expected(self) -> str:
        """The expected range, in words."""
        least, most = f"{self.least:.12g}", f"{self.most:.12g}"
        if math.isinf(self.most):
            return f"at least {least}"
        return most if self.least == self.most else f"{least} to {most}" if self.least > SOME else f"at most {most}"

    @property
    def reached(self) -> float:
        """The value as a share of its only limit; NaN if it has two."""
        limits = (self.value, self.most) if self.least <= SOME else (self.least, self.value)
        alone = self.least != self.most and (self.least <= SOME or math.isinf(self.most))
        return limits[0] / limits[1] if alone and limits[1] else math.nan

    @property
    def allowed(self) -> float:
        """The share of its only limit that is allowed."""
        return self.high / self.most if self.least <= SOME else self.least / self.low

    @property
    def apart(self) -> float:
        """The relative difference from the expected range."""
        edge = min(max(self.value, self.least), self.most)
        return abs(self.value / edge - 1) if edge else 0.0


@dataclass(frozen=True)
class Law:
    """A condition on the numbers of a metric."""

    experiment: str
    metric: str
    expected: Callable[[Reading], Expected]
    tolerance: float | tuple[float, float] = 0.0
    """Relative difference allowed, or those below and above."""
    slack: float = 0.0
    """Difference allowed, in the metric's unit."""
    column: str | Callable[[Series], float] = "mean"
    """The statistic, or a function of the row."""
    where: Mapping[str, object] = field(default_factory=dict)
    """The values that the metric's rows must have in other columns."""
    per: str = ""
    """The metric whose rows the law applies to, if not its own; the number is then the sum of its own in the same cell,
    0 if none."""

    @property
    def sides(self) -> tuple[float, float]:
        """The relative differences allowed below and above."""
        return self.tolerance if isinstance(self.tolerance, tuple) else (self.tolerance, self.tolerance)

    def readings(self, tables: Mapping[str, DataFrame]) -> Iterator[tuple[Reading, Bounds]]:
        """Each row that the law applies to, and its bounds."""
        table = tables[self.experiment]
        rows = select(table, metric=self.per) if self.per else select(table, metric=self.metric, **self.where)
        keys = parameters(EXPERIMENTS[self.experiment])
        cells = dict(list(table.groupby(keys, sort=False))) if len(rows) else {}
        for _, row in rows.iterrows():
            reading = Reading(self.experiment, row, cells[tuple(row[key] for key in keys)], tables)
            if (bounds := self.bounds(reading)) is not None:
                yield reading, bounds

    def bounds(self, reading: Reading) -> Bounds | None:
        """Compute the bounds of a reading; None where the law does not apply."""
        try:
            expected = self.expected(reading)
        except Unlisted:
            return None
        least, most = expected if isinstance(expected, tuple) else (expected, expected)
        if least is None or most is None or math.isnan(least) or math.isnan(most):
            return None
        below, above = self.sides
        low, high = least - self.slack - below * abs(least), most + self.slack + (above and above * most)
        rows = select(reading.cell, metric=self.metric, **self.where).iterrows() if self.per else [(0, reading.row)]
        return Bounds(sum(self.number(row) for _, row in rows), least, most, low, high)

    def number(self, row: Series) -> float:
        """The statistic of a row."""
        return float(row[self.column] if isinstance(self.column, str) else self.column(row))

    def case(self, reading: Reading, bounds: Bounds) -> Case:
        """The case of a reading."""
        what = " ".join([self.metric, *map(str, self.where.values()), f"{bounds.value:.12g}"])
        unit = EXPERIMENTS[self.experiment].metrics[self.metric] if self.per else reading.row["unit"]
        detail = f"{what} {unit}, expected {bounds.expected}"
        wrong = not bounds.low <= bounds.value <= bounds.high
        return Case(name_row(self.experiment, reading.row) if wrong else None, wrong, detail)


class Statement(NamedTuple):
    """Several laws under one sentence."""

    sentence: str
    laws: Sequence[Law]

    def check(self, tables: Mapping[str, DataFrame]) -> Check:
        """Whether it holds in the tables."""
        readings = [(law, *reading) for law in self.laws for reading in law.readings(tables)]
        cases = [law.case(reading, bounds) for law, reading, bounds in readings]
        return conclude(self.sentence, cases, self.summary([bounds for *_, bounds in readings]), self.none(tables))

    def summary(self, numbers: Sequence[Bounds]) -> str:
        """The number of values, and how close the closest is to its limit."""
        if limits := [bounds for bounds in numbers if not math.isnan(bounds.reached)]:
            most, allowed = max(bounds.reached for bounds in limits), max(bounds.allowed for bounds in limits)
            return f"{{n}} number{{s}}; the closest reaches {most:.1%} of its limit, allowed {allowed:.0%}"
        apart = max((bounds.apart for bounds in numbers), default=0.0)
        allowed = max(max(law.sides) for law in self.laws)
        if apart < EQUAL:
            return "{n} number{s}, all as expected"
        limit = f", allowed {100 * allowed:.3g}%" if allowed else ""
        return f"{{n}} number{{s}}; largest difference {apart:.2%}{limit}"

    def none(self, tables: Mapping[str, DataFrame]) -> str:
        """Why there is no value that it applies to."""
        if not any(len(tables[law.experiment]) for law in self.laws):
            return f"not run: {', '.join(dict.fromkeys(law.experiment for law in self.laws))}"
        if not measured_gpu(tables):
            return "measured on GPUs only"
        numbers = any(len(select(tables[law.experiment], metric=law.metric)) for law in self.laws)
        return "there is nothing to compare with" if numbers else "no such number was measured"
