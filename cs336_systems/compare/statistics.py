"""Whether two runs' times differ, for hundreds of cells at once. NumPy and the standard library only.

A run is one launch on one machine. Samples of one process are correlated, and they miss what changes between processes:
clocks and temperature, memory layout, neighbours. An interval from the samples alone is far too narrow. So the
logarithm of a cell's ratio gets the variance

    var(ln b / a) = sum over both runs of  error² + base² + (spread · s)² + (clock · c)²

with the standard error of the median, the relative spread s of the samples, and the drop c of the clock below the GPU's
maximum. The three coefficients (`RunToRun`) are fitted to pairs of unchanged runs, in the tail: large differences
between them are at least as rare as in this normal distribution.

Verdicts are faster or slower if the Benjamini-Hochberg procedure rejects "no difference" (false discovery rate q), and
same if it rejects "differ by at least the margin" (two one-sided tests, Schuirmann 1987). Holm's procedure, which
bounds the chance of a single false verdict, would need deviations a sixth smaller to detect the same slowdown in a
tenth of 500 cells. If nothing has changed the two agree: the chance of any false verdict is at most q. Cells of a run
share its state, so their tests depend positively, which the procedure allows (Benjamini and Yekutieli 2001).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy

from cs336_systems.compare.speed import Verdict, outcome

FITTED = Path(__file__).with_name("run_to_run.json")
"""Coefficients that `python -m scripts.calibration.run_to_run` fitted to pairs of unchanged runs."""
LEVEL = 0.01
"""False discovery rate of verdicts."""
MARGIN = 0.03
"""Times that differ by less are the same."""
NORMAL = NormalDist()
QUINTILES_APART = NORMAL.inv_cdf(0.8) - NORMAL.inv_cdf(0.2)
"""Distance of the 20th and the 80th percentile of a normal distribution, in standard deviations."""
MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
"""Ratio of the standard errors of median and mean, for many normal samples."""
PRIOR_SAMPLES = 4
"""The weight of the typical spread relative to a cell's own, in samples: five samples can be close together by
chance."""
FEWEST_ORDERED = 16
"""Minimum number of samples that show their correlation."""
FEWEST_UNCHANGED = 16
"""Minimum number of cells that show how far unchanged runs differ."""
CHANGED, POWER = 0.1, 0.95
"""Resolution is the change detected with this probability if this share of the cells has changed."""


@dataclass(frozen=True)
class RunToRun:
    """How far a cell's median moves from one run to the next: the standard deviation of its logarithm."""

    base: float
    """The part that any cell has."""
    spread: float
    """The part per relative spread of the samples."""
    clock: float
    """Per relative drop of the clock below the GPU's maximum."""
    typical_spread: float
    """Relative spread of the samples of a usual cell."""

    def deviation(self, time: "Time") -> float:
        """Standard deviation of the logarithm of a run's median, including its sampling error."""
        spread = self.spread * self.shrunk(time)
        error = max(time.error, MEDIAN_OVER_MEAN * self.shrunk(time) / math.sqrt(time.n))
        return math.hypot(error, self.base, spread, self.clock * time.clock_drop)

    def shrunk(self, time: "Time") -> float:
        """The spread of a cell's samples, shrunk towards the typical spread if there are few."""
        own = (time.n - 1) * time.spread**2
        return math.sqrt((own + PRIOR_SAMPLES * self.typical_spread**2) / (time.n - 1 + PRIOR_SAMPLES))


@cache
def run_to_run(*, on_gpu: bool) -> RunToRun:
    """The fitted model of GPUs, or of CPUs."""
    return RunToRun(**json.loads(FITTED.read_text(encoding="utf-8"))["gpu" if on_gpu else "cpu"])


@dataclass(frozen=True)
class Time:
    """The median of a cell in one run, and the error estimate from its samples."""

    median: float
    n: int = 1
    """Number of samples."""
    spread: float = 0.0
    """Robust standard deviation of the samples, relative to the median."""
    error: float = 0.0
    """Standard error of the median that the samples' order implies, relative to it."""
    clock_drop: float = 0.0
    """Relative drop of the clock below the GPU's maximum during the cell."""
    is_ms: bool = True
    """Whether the median is a time in ms; otherwise it is a rate."""


def time_of(
    median: float, samples: Sequence[float] = (), *, ordered: bool = True, clock_drop: float = 0.0, is_ms: bool = True
) -> Time:
    """Summarize a run's samples of a cell, positive numbers; `ordered`: in the order of measurement."""
    if len(samples) < 2:
        return Time(median, clock_drop=clock_drop, is_ms=is_ms)
    logs = numpy.log(numpy.asarray(samples, dtype=float))
    low, high = numpy.quantile(logs, [0.2, 0.8])
    error = 0.0
    if ordered and len(logs) >= FEWEST_ORDERED:
        # Medians of consecutive batches are nearly independent, regardless of the correlation within a batch.
        batches = numpy.array_split(logs, math.isqrt(len(logs)))
        medians = [float(numpy.median(batch)) for batch in batches]
        error = float(numpy.std(medians, ddof=1)) / math.sqrt(len(medians))
    return Time(median, len(logs), float(high - low) / QUINTILES_APART, error, clock_drop, is_ms)


@dataclass(frozen=True)
class Difference:
    """The logarithm of a ratio of times, b over a: above 0, b is slower."""

    log_ratio: float
    deviation: float
    """Its standard deviation."""

    @property
    def ratio(self) -> float:
        """Time of b divided by time of a."""
        return math.exp(self.log_ratio)

    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of this one ratio."""
        reach = NORMAL.inv_cdf(0.975) * self.deviation
        return math.exp(self.log_ratio - reach), math.exp(self.log_ratio + reach)

    @property
    def p_different(self) -> float:
        """Probability of a difference at least as large if there is none."""
        return tail(abs(self.log_ratio) / self.deviation) * 2

    def p_equivalent(self, margin: float) -> float:
        """The larger probability of the two one-sided tests against a difference of the margin."""
        reach = math.log1p(margin)
        return max(tail((reach - side * self.log_ratio) / self.deviation) for side in (1, -1))

    def resolution(self) -> float:
        """The slowdown detected with probability POWER if a share CHANGED of the cells has changed."""
        critical = NORMAL.inv_cdf(1 - LEVEL * CHANGED / 2) + NORMAL.inv_cdf(POWER)
        return math.expm1(critical * self.deviation)


def tail(z: float) -> float:
    """Probability that a standard normal number is above z, also accurate in the far tail."""
    return math.erfc(z / math.sqrt(2)) / 2


def difference(a: Time, b: Time, model: RunToRun) -> Difference:
    """Compare two runs' times of a cell; rates are compared as times per unit of work."""
    assert a.is_ms == b.is_ms, "a time cannot be compared with a rate"
    log_ratio = math.log(b.median / a.median) * (1 if a.is_ms else -1)
    return Difference(log_ratio, math.hypot(model.deviation(a), model.deviation(b)))


def benjamini_hochberg(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Mark the hypotheses rejected at a false discovery rate (Benjamini and Hochberg 1995)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    small = [rank for rank, index in enumerate(order, 1) if p_values[index] <= level * rank / len(order)]
    rejected = set(order[: max(small, default=0)])
    return [index in rejected for index in range(len(p_values))]


def decide(differences: Sequence[Difference], *, margin: float = MARGIN) -> list[Verdict]:
    """Return verdicts on b against a, for all cells together.

    A difference proven to be below the margin counts as none, even if it is proven to be nonzero.
    """
    same = benjamini_hochberg([each.p_equivalent(margin) for each in differences])
    apart = benjamini_hochberg([each.p_different for each in differences])
    return [
        outcome(each.log_ratio, tie=math.inf if is_same else -1.0, reach=0.0 if is_apart else math.inf)
        for each, is_same, is_apart in zip(differences, same, apart, strict=True)
    ]


def widening(unchanged: Sequence[Difference], shares: Sequence[float] = (0.5,)) -> float:
    """Factor by which the differences of unchanged runs exceed a model's prediction, by their quantiles.

    Differences are taken around their median. The middle half is not affected by cells that really changed, whether
    some or all alike: the empirical null of Efron 2004. A larger share covers more of the tail. 1 if there are too few
    cells.
    """
    if len(unchanged) < FEWEST_UNCHANGED:
        return 1.0
    scores = numpy.array([each.log_ratio / each.deviation for each in unchanged])
    apart = numpy.abs(scores - numpy.median(scores))
    return max(float(numpy.quantile(apart, share)) / NORMAL.inv_cdf((1 + share) / 2) for share in shares)
