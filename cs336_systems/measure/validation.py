"""What every row must satisfy to be a measurement, whoever wrote it. No torch here."""

import math
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.measurement import COMMON_UNITS, SAMPLE_DIGITS, WHOLE_CELL, parse_samples

STATISTICS = ("mean", "median", "p20", "p80")
ROUNDING = 1e-9
"""Relative slack of statistics that are compared with each other."""
SAMPLE_ROUNDING = 10.0 ** (1 - SAMPLE_DIGITS)
"""Relative slack of statistics that are compared with the kept samples."""
CLOCK_SKEW = timedelta(minutes=10)
"""How far ahead the clock of the machine that measured may be."""


def first_fault(experiment: type[Experiment], row: BaseModel) -> str | None:
    """The first reason why a row cannot be a measurement, as a sentence with column and value, or None."""
    return next(_faults(experiment, row), None)


def _faults(experiment: type[Experiment], row: BaseModel) -> Iterator[str]:
    yield from _metric_faults(experiment, row)
    if row.status != "ok":
        if not row.message:
            yield "message is ''; allowed: the reason for any status but ok"
        if row.n or any(getattr(row, name) is not None for name in (*STATISTICS, "std")):
            yield f"status is {row.status!r}; allowed: ok for a row with statistics"
    elif row.value:
        if row.n != 1 or row.mean is not None:
            yield f"value is {row.value!r}; allowed: a value with n 1 and no statistics, or statistics without a value"
    else:
        yield from _statistics_faults(row)
    yield from _time_faults(row)


def _metric_faults(experiment: type[Experiment], row: BaseModel) -> Iterator[str]:
    units = {**COMMON_UNITS, **experiment.metrics}
    if row.metric not in units:
        yield f"metric is {row.metric!r}; allowed: {', '.join(units)}"
    elif row.unit != units[row.metric]:
        yield f"unit is {row.unit!r}; allowed for {row.metric}: {units[row.metric]!r}"
    if row.metric == WHOLE_CELL and row.status == "ok":
        yield f"status is 'ok'; allowed for {WHOLE_CELL}: what kept the cell from being measured"
    planned = experiment.planned_samples(row, row.metric)
    if row.status == "ok" and planned is not None and row.n != planned:
        yield f"n is {row.n}; planned: {planned}"


def _statistics_faults(row: BaseModel) -> Iterator[str]:
    """The bounds that n numbers from zero up put on their own statistics."""
    if row.n < 1:
        yield f"n is {row.n}; allowed: at least 1 for statistics"
        return
    for name in STATISTICS:
        value = getattr(row, name)
        if value is None:
            yield f"{name} is empty; allowed: a number, since the row is ok"
            return
        if value < 0:
            yield f"{name} is {value}; allowed: numbers from 0"
    if (row.std is None) != (row.n == 1):
        yield f"std is {'empty' if row.std is None else row.std}; allowed: empty for one sample, else a number"
        return
    slack = ROUNDING * row.mean
    if not row.p20 - slack <= row.median <= row.p80 + slack:
        yield f"median is {row.median}; allowed: between p20, {row.p20}, and p80, {row.p80}"
    if row.samples:
        yield from _sample_faults(row)
    spread = row.std or 0.0
    if spread < 0:
        yield f"std is {spread}; allowed: numbers from 0"
    # A mean and a median are at most one (population) standard deviation apart.
    apart = spread * math.sqrt((row.n - 1) / row.n)
    if abs(row.mean - row.median) > apart + slack:
        yield f"mean is {row.mean}; allowed: within {apart:g} of the median, {row.median}, given std and n"
    # Samuelson 1968: no sample lies further from the mean than (n - 1) / sqrt(n) standard deviations.
    reach = spread * (row.n - 1) / math.sqrt(row.n)
    for name in ("p20", "p80"):
        if abs(getattr(row, name) - row.mean) > reach + slack:
            yield f"{name} is {getattr(row, name)}; allowed: within {reach:g} of the mean, {row.mean}, given std and n"
    # No sample is negative, so none can offset more than n - 1 zeros.
    if spread > row.mean * math.sqrt(row.n) + slack:
        yield f"std is {spread}; allowed: at most sqrt(n) times the mean, {row.mean}, of numbers from 0"


def _sample_faults(row: BaseModel) -> Iterator[str]:
    """Whether the statistics are those of the kept samples."""
    try:
        samples = sorted(parse_samples(row.samples))
    except ValueError:
        yield f"samples is {row.samples[:40]!r}; allowed: numbers, separated by spaces, with *count after repeated ones"
        return
    if len(samples) != row.n or row.n < 2:
        yield f"n is {row.n}, but there are {len(samples)} samples"
        return
    quintiles = statistics.quantiles(samples, n=5, method="inclusive")
    expected = {
        "mean": statistics.fmean(samples),
        "median": statistics.median(samples),
        "p20": quintiles[0],
        "p80": quintiles[3],
        "std": statistics.stdev(samples),
    }
    slack = SAMPLE_ROUNDING * max(map(abs, samples))
    for name, value in expected.items():
        if abs(getattr(row, name) - value) > slack:
            yield f"{name} is {getattr(row, name)}; from the samples it is {value:g}"


def _time_faults(row: BaseModel) -> Iterator[str]:
    try:
        moment = datetime.fromisoformat(row.utc)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        yield f"utc is {row.utc!r}; allowed: a time as in ISO 8601, with its offset from UTC"
    elif moment > datetime.now(UTC) + CLOCK_SKEW:
        yield f"utc is {row.utc!r}, which is in the future"
