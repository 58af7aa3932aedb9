"""Conditions that every row must satisfy to be a measurement. No torch here."""

import math
import re
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import BaseModel

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import METRICS, SECONDS
from cs336_systems.implementations import own_implementations
from cs336_systems.record.measurement import COMMON_UNITS, SAMPLE_DIGITS, STAGES, WHOLE_CELL, Status, parse_samples

STATISTICS = ("mean", "median", "p20", "p80")
NUMBERED = ("bucket_mb", "rank")
"""Detail columns that hold a whole number."""
ROUNDING = 1e-9
"""Relative tolerance of statistics compared with each other."""
SAMPLE_ROUNDING = 10.0 ** (1 - SAMPLE_DIGITS)
"""Relative tolerance of statistics compared with the kept samples."""
CLOCK_SKEW = timedelta(minutes=10)
"""Maximum time by which the measuring machine's clock may be ahead."""


class Row(BaseModel, extra="forbid", allow_inf_nan=False, frozen=True):
    """A row of any experiment. `row_model` adds its columns; columns declared here are checked in every row."""

    if TYPE_CHECKING:
        experiment: str
        metric: str
        unit: str
        n: int
        mean: float | None
        std: float | None
        median: float | None
        p20: float | None
        p80: float | None
        value: str
        status: Status
        message: str
        samples: str
        gpu: str
        utc: str


def first_fault(experiment: type[Experiment], row: Row) -> str | None:
    """Find the first reason why a row cannot be a measurement, as a sentence with column and value, or None."""
    return next(_faults(experiment, row), None)


def _faults(experiment: type[Experiment], row: Row) -> Iterator[str]:
    yield from _detail_faults(experiment, row)
    yield from _metric_faults(experiment, row)
    if row.status != "ok":
        if not row.message:
            yield "message is ''; allowed: the reason for any status except ok"
        if row.n or any(getattr(row, name) is not None for name in (*STATISTICS, "std")):
            yield f"status is {row.status!r}; allowed: ok for a row with statistics"
    elif row.value:
        if row.n != 1 or row.mean is not None:
            yield f"value is {row.value!r}; allowed: a value with n 1 and no statistics, or statistics without a value"
    else:
        yield from _statistics_faults(row)
    yield from _time_faults(row)


def _metric_faults(experiment: type[Experiment], row: Row) -> Iterator[str]:
    units = {**COMMON_UNITS, **experiment.metrics}
    if row.metric not in units:
        yield f"metric is {row.metric!r}; allowed: {', '.join(units)}"
    elif row.unit != units[row.metric]:
        yield f"unit is {row.unit!r}; allowed for {row.metric}: {units[row.metric]!r}"
    if row.metric == WHOLE_CELL and row.status == "ok":
        yield f"status is 'ok'; allowed for {WHOLE_CELL}: the reason why the cell was not measured"
    planned = experiment.planned_samples(row, row.metric)
    if row.status == "ok" and planned is not None and row.n != planned:
        yield f"n is {row.n}; planned: {planned}"


def _detail_faults(experiment: type[Experiment], row: Row) -> Iterator[str]:
    vocabulary = {"stage": STAGES, **getattr(experiment, "vocabulary", {})}
    own = [implementation.name for implementation in own_implementations(row)]
    for column in experiment.details:
        value = getattr(row, column)
        # The kind of a collective consists of the part of the step and its name.
        if value and column in vocabulary and value.partition(" ")[0] not in (*vocabulary[column], *own):
            yield f"{column} is {value!r}; allowed: {', '.join(vocabulary[column])}"
        if value and column in NUMBERED and not re.fullmatch("[1-9][0-9]*", value):
            yield f"{column} is {value!r}; allowed: a whole number from 1"


def _takes_time(row: Row) -> bool:
    """Whether a row times work, so that its samples must be above zero."""
    metric = METRICS.get(row.experiment, {}).get(row.metric)
    return row.unit in SECONDS and not (metric and metric.zero)


def _impossible(row: Row, value: float) -> bool:
    """Whether no sample of a row may have a value."""
    return value <= 0 if _takes_time(row) else value < 0


def _possible(row: Row) -> str:
    """Describe the allowed samples of a row, in words."""
    return "times above 0" if _takes_time(row) else "numbers from 0"


def _statistics_faults(row: Row) -> Iterator[str]:
    """Check statistics against the bounds implied by n nonnegative numbers (times: positive numbers)."""
    if row.n < 1:
        yield f"n is {row.n}; allowed: at least 1 for statistics"
        return
    for name in STATISTICS:
        value = getattr(row, name)
        if value is None:
            yield f"{name} is empty; allowed: a number, since the row is ok"
            return
        if _impossible(row, value):
            yield f"{name} is {value}; allowed: {_possible(row)}"
    if (row.std is None) != (row.n == 1):
        yield f"std is {'empty' if row.std is None else row.std}; allowed: empty for one sample, else a number"
        return
    mean, median, p20, p80 = (getattr(row, name) for name in STATISTICS)
    slack = ROUNDING * mean
    if not p20 - slack <= median <= p80 + slack:
        yield f"median is {median}; allowed: between p20, {p20}, and p80, {p80}"
    if row.samples:
        yield from _sample_faults(row)
    spread = row.std or 0.0
    if spread < 0:
        yield f"std is {spread}; allowed: numbers from 0"
    # Samuelson 1968: no sample lies further from the mean than (n - 1) / sqrt(n) standard deviations.
    reach = spread * (row.n - 1) / math.sqrt(row.n)
    for name, value in (("median", median), ("p20", p20), ("p80", p80)):
        if abs(value - mean) > reach + slack:
            yield f"{name} is {value}; allowed: within {reach:g} of the mean, {mean}, given std and n"


def _sample_faults(row: Row) -> Iterator[str]:
    """Check the statistics against the kept samples."""
    try:
        samples = sorted(parse_samples(row.samples))
    except ValueError:
        samples = []
    if not samples or not all(map(math.isfinite, samples)):
        yield f"samples is {row.samples[:40]!r}; allowed: numbers, separated by spaces, with *count after repeated ones"
        return
    if len(samples) != row.n or row.n < 2:
        yield f"n is {row.n}, but there are {len(samples)} samples"
        return
    if _impossible(row, samples[0]):
        yield f"samples has {samples[0]:g}; allowed: {_possible(row)}"
    mean = statistics.fmean(samples)
    quintiles = statistics.quantiles(samples, n=5, method="inclusive")
    expected = {
        "mean": mean,
        "median": statistics.median(samples),
        "p20": quintiles[0],
        "p80": quintiles[3],
        # statistics.stdev computes with fractions, which takes longer than everything else here.
        "std": math.sqrt(math.fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)),
    }
    slack = SAMPLE_ROUNDING * max(map(abs, samples))
    for name, value in expected.items():
        if abs(getattr(row, name) - value) > slack:
            yield f"{name} is {getattr(row, name)}; from the samples it is {value:g}"


def _time_faults(row: Row) -> Iterator[str]:
    try:
        moment = datetime.fromisoformat(row.utc)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        yield f"utc is {row.utc!r}; allowed: a time as in ISO 8601, with its offset from UTC"
    elif moment > datetime.now(UTC) + CLOCK_SKEW:
        yield f"utc is {row.utc!r}, which is in the future"
