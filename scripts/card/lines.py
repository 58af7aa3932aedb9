"""A card's rows as lines, the rate of each workload on each GPU with the GPU's state during the measurement, and as
facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cs336_systems.compare.cells import ALSO_COMPARED
from cs336_systems.experiments.card import Card

RATES = ALSO_COMPARED[Card.name]
"""Metrics for which higher is better; a line has one of them."""
Key = tuple[str, str]
"""Instrument and workload."""
Facts = Mapping[str, str]
"""Facts that the driver or the operating system reports of one GPU or CPU; empty texts if it does not."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected rate of a workload."""

    value: float
    margin: float
    """Share of the value by which a rate may be lower."""
    source: str
    gpus: int = 0
    """The number of recorded GPUs in the median."""
    sm_clock: float | None = None
    """Their SM clock during the measurement, MHz."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The rate of a workload on a GPU, with its reference."""

    instrument: str
    work: str
    gpu: str
    """The GPU's number, or two as in 0-1; empty for a CPU."""
    unit: str = ""
    value: float | None = None
    """Median of its samples; None if it could not be measured."""
    spread: float = 0.0
    """Half the distance from the 20th to the 80th percentile of its samples, as a share of the median."""
    status: str = "ok"
    message: str = ""
    """Why it could not be measured."""
    wrong: bool = False
    """Whether numbers of its result were wrong."""
    state: Mapping[str, float] = field(default_factory=dict)
    """Medians of clocks (MHz), power (W), temperature (°C) and PCIe link, as the driver reports them."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Throttle reasons, each with the share of the time in which the driver named it."""
    expected: Expected | None = None
    of_others: float | None = None
    """Its rate as a share of the median of the other GPUs here."""
    slow: bool | None = None
    """Whether it is lower than GPUs of a model differ; None if there is nothing to compare with."""

    @property
    def key(self) -> Key:
        """The measured quantity, on any GPU."""
        return (self.instrument, self.work)

    @property
    def share(self) -> float | None:
        """Its rate as a share of the expected one."""
        return self.value / self.expected.value if self.value and self.expected else None


def lines_of(rows: Iterable[Any]) -> list[Line]:
    """Make the lines of a card's rows, in the order of measurement."""
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if not row.work:
            continue
        line = lines.setdefault((row.instrument, row.work, row.device), {"state": {}, "throttled": {}})
        if row.metric in RATES:
            line |= {"unit": row.unit, "status": row.status, "message": row.message}
            if row.status == "ok":
                line |= {"value": row.median, "spread": (row.p80 - row.p20) / 2 / row.median}
        elif row.metric == "wrong_numbers":
            line["wrong"] = True
        elif row.metric == "throttled":
            line["throttled"][row.about] = row.mean
        else:
            line["state"][row.metric] = row.median
    return [Line(instrument=instrument, work=work, gpu=gpu, **line) for (instrument, work, gpu), line in lines.items()]


def facts_of(rows: Iterable[Any]) -> dict[str, dict[str, str]]:
    """Collect the facts of each GPU by its number, or of the CPU under an empty one."""
    facts: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.metric == "fact":
            facts.setdefault(row.device, {})[row.about] = row.value
    return facts


def number(facts: Facts, name: str) -> float | None:
    """A fact that is a number; None if it is not reported."""
    return float(facts[name]) if facts.get(name) else None
