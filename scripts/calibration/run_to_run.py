"""Fit the variation of times from run to run to pairs of unmodified runs.

Launch: python -m scripts.calibration.run_to_run [FOLDER ...]

The GPU's pairs come from the history of recorded/, the CPU's from launches of the same jobs in the given folders.
Writes cs336_systems/compare/run_to_run.json; without folders the CPU's entry stays.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy
from numpy.typing import NDArray

from cs336_systems.compare.results import read_results
from cs336_systems.compare.statistics import FITTED, NORMAL, RunToRun, Time
from scripts.calibration.pairs import Pair, from_history, pairs_of

TAIL = (0.8, 0.9, 0.95, 0.99, 0.995)
"""Quantiles at which the differences must not exceed the normal distribution's."""
SHARED = 8
"""From this many rows of one bound on, the common difference of two runs' cells is separated: the GPUs differ."""
STARTS = ((0.004, 0.5, 0.2), (0.006, 0.1, 0.1), (0.002, 1.2, 0.3))
"""Names of the coefficients: base, spread and clock."""

Numbers = NDArray[numpy.float64]


def differences(pairs: Sequence[Pair]) -> Numbers:
    """Logarithms of the ratios without the common part of two runs' cells.

    Rented GPUs of the same model differ by up to 2 %. This is a difference between two GPUs, not between two runs.
    """
    logs = numpy.array([math.log(pair.b.median / pair.a.median) for pair in pairs])
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, pair in enumerate(pairs):
        groups[pair.runs, pair.bound].append(index)
    for indices in groups.values():
        if len(indices) >= SHARED:
            logs[indices] -= numpy.median(logs[indices])
    return logs


def fit(pairs: Sequence[Pair]) -> RunToRun:
    """The tightest model for which the scaled differences of unmodified runs have no heavier tail than a normal
    distribution.

    It has the smallest mean logarithm of the deviations. The search varies one coefficient at a time; after each step
    all of them are scaled until the tail fits.
    """
    logs = differences(pairs)
    times = [(pair.a, pair.b) for pair in pairs]
    typical = float(numpy.median([time.spread for both in times for time in both if time.n >= 10]))
    no_run = RunToRun(0.0, 0.0, 0.0, typical)
    # The parts of each difference's variance: of the samples, and per squared coefficient.
    sampling = numpy.array([sum(no_run.deviation(time) ** 2 for time in both) for both in times])
    parts = numpy.array(
        [[sum(part) for part in zip(*(parts_of(time, no_run) for time in both), strict=True)] for both in times]
    )

    def deviations(coefficients: Numbers) -> Numbers:
        combined: Numbers = numpy.sqrt(sampling + parts @ coefficients**2)
        return combined

    def fits(coefficients: Numbers) -> bool:
        scores = numpy.abs(logs) / deviations(coefficients)
        limits = {level: float(numpy.quantile(scores, level)) for level in TAIL if (1 - level) * len(pairs) >= 2}
        limits[1 - 0.05 / len(pairs)] = float(scores.max())
        return all(largest <= NORMAL.inv_cdf((1 + level) / 2) for level, largest in limits.items())

    def scaled(coefficients: Numbers) -> Numbers:
        low, high = 0.01, 100.0
        for _ in range(20):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle * coefficients) else (middle, high)
        return high * coefficients

    def cost(coefficients: Numbers) -> float:
        return float(numpy.mean(numpy.log(deviations(coefficients))))

    best = min((search(numpy.array(start), scaled, cost) for start in STARTS), key=cost)
    base, spread, clock = map(float, best)
    return RunToRun(base, spread, clock, typical)


def parts_of(time: Time, model: RunToRun) -> tuple[float, float, float]:
    """A run's variance per squared coefficient: base, spread and clock."""
    return 1.0, model.shrunk(time) ** 2, time.clock_drop**2


def search(start: Numbers, scaled: Callable[[Numbers], Numbers], cost: Callable[[Numbers], float]) -> Numbers:
    """A minimum of a cost over the directions of the coefficients."""
    best = scaled(start)
    least, step = cost(best), 1.0
    while step > 0.02:
        improved = False
        for index in range(len(best)):
            for factor in (1 + step, 1 / (1 + step)):
                other = best.copy()
                other[index] *= factor
                other = scaled(other)
                if (value := cost(other)) < least - 1e-5:
                    best, least, improved = other, value, True
        step = step if improved else step / 2
    return best


def entry(fitted: RunToRun) -> dict[str, float]:
    """A fit as the file has it."""
    return {name: float(f"{value:.3g}") for name, value in asdict(fitted).items()}


if __name__ == "__main__":
    known = json.loads(FITTED.read_text(encoding="utf-8")) if FITTED.exists() else {}
    known["gpu"] = entry(fit(from_history()))
    if sys.argv[1:]:
        known["cpu"] = entry(fit(pairs_of(read_results(folder).rows for folder in sys.argv[1:])))
    FITTED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(FITTED.read_text(encoding="utf-8"), end="")
