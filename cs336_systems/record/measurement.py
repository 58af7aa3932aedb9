"""A metric of a cell: statistics of its samples, or the reason why it has none. No torch here."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "oom", "skipped", "failed"]

WHOLE_CELL = "cell"
"""Metric of the one row of a cell that could not be measured."""
WALL = "wall"
"""Metric of a cell's total time, including untimed parts (build, compilation, release)."""
SM_CLOCK, POWER = "sm_clock", "power"
"""Metrics of the GPU's state during a cell, including its build and warm-up."""
COMMON_UNITS: Mapping[str, str] = {WHOLE_CELL: "", WALL: "s", SM_CLOCK: "MHz", POWER: "W"}
"""Metrics that every experiment has, and their units."""
STAGES = ("forward", "loss", "backward", "optimizer")
"""The stages of a training step, in order, in the column `stage`. Each is the outermost named range."""

ORDERED_SAMPLES = 256
"""Up to this number, samples are kept in the order of measurement; more samples are sorted, so that equal ones can be
counted."""
SAMPLE_DIGITS = 5
"""Significant digits of a kept sample."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One metric of one cell: either statistics of n samples, or a value that is not numeric."""

    metric: str
    """Name of the metric."""
    unit: str = ""
    """Unit of the statistics."""
    n: int = 0
    """Number of samples."""
    mean: float | None = None
    """Arithmetic mean."""
    std: float | None = None
    """Sample standard deviation (n - 1); empty for one sample."""
    median: float | None = None
    """Median."""
    p20: float | None = None
    """20th percentile."""
    p80: float | None = None
    """80th percentile."""
    value: str = ""
    """An observation that is not numeric, such as a dtype."""
    status: Status = "ok"
    """ok; oom: memory ran out; skipped: this machine lacks something; failed: a tool such as a compiler failed."""
    message: str = ""
    """Reason for any status except ok."""
    samples: str = ""
    """The samples in the format of `format_samples`; empty for a single sample (the mean), and if not kept."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Values of the experiment's detail columns, which distinguish rows of the same cell and metric."""


def summarize(
    metric: str, unit: str, samples: Sequence[float], *, keep: bool = True, details: Mapping[str, str] | None = None
) -> Measurement:
    """Summarize samples (at least one) and, by default, keep them."""
    ordered = sorted(samples)
    quintiles = statistics.quantiles(ordered, n=5, method="inclusive") if len(ordered) > 1 else ordered * 4
    return Measurement(
        metric=metric,
        unit=unit,
        n=len(ordered),
        mean=statistics.fmean(ordered),
        std=statistics.stdev(ordered) if len(ordered) > 1 else None,
        median=statistics.median(ordered),
        p20=quintiles[0],
        p80=quintiles[3],
        samples=format_samples(samples) if keep and len(ordered) > 1 else "",
        details=details or {},
    )


def skipped(metric: str, unit: str, why: str, details: Mapping[str, str] | None = None) -> Measurement:
    """Make the row of a metric that cannot be measured here, with the reason."""
    return Measurement(metric=metric, unit=unit, status="skipped", message=why, details=details or {})


def format_samples(samples: Sequence[float]) -> str:
    """Format samples as text, with equal neighbours counted.

    >>> format_samples([1.5, 2.0, 2.0, 1.25])
    '1.5 2*2 1.25'
    """
    kept = sorted(samples) if len(samples) > ORDERED_SAMPLES else samples
    texts = [f"{sample:.{SAMPLE_DIGITS}g}" for sample in kept]
    counted = ((text, len(list(group))) for text, group in itertools.groupby(texts))
    return " ".join(text if count == 1 else f"{text}*{count}" for text, count in counted)


def parse_samples(text: str) -> list[float]:
    """Parse the samples that `format_samples` wrote.

    Raises:
        ValueError: the text has another form.
    """
    samples: list[float] = []
    for part in text.split():
        number, _, count = part.partition("*")
        samples += [float(number)] * int(count or 1)
    return samples
