"""A card's rows as lines: one for each work on each GPU, with the GPU's state meanwhile; and the driver's facts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

RATES = ("rate", "bandwidth", "launch_rate", "token_rate")
"""Metrics of which more is better; a line has one of them."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The rate of a work on a GPU."""

    instrument: str
    work: str
    gpu: str
    """The GPU's number, or two; empty for a CPU."""
    unit: str = ""
    value: float | None = None
    """Median of its samples; None if it could not be measured."""
    spread: float = 0.0
    """Half of the distance from the 20th to the 80th percentile of its samples, as a share of the median."""
    samples: int = 0
    status: str = "ok"
    message: str = ""
    """Why it could not be measured."""
    wrong: int = 0
    """How many of its numbers were wrong."""
    state: Mapping[str, float] = field(default_factory=dict)
    """Medians of clocks (MHz), power (W), temperature (°C) and PCIe link, as the driver reports them."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Throttle reasons, each with the share of the time in which the driver named it."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts that the driver or the operating system reports of one GPU or CPU."""

    known: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Facts that are not reported, and why."""

    def number(self, name: str) -> float | None:
        """A fact that is a number; None if it is unknown."""
        return float(self.known[name]) if name in self.known else None

    def says(self, name: str, value: str) -> bool:
        """Whether a fact is known to have a value."""
        return self.known.get(name) == value


def lines_of(rows: Iterable[Any]) -> list[Line]:
    """Make the lines of a card's rows, in the order of measurement."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if not row.work:
            continue
        line = found.setdefault((row.instrument, row.work, row.device), {"state": {}, "throttled": {}})
        if row.metric in RATES:
            line |= {"unit": row.unit, "status": row.status, "message": row.message}
            if row.status == "ok":
                line |= {"value": row.median, "samples": row.n, "spread": (row.p80 - row.p20) / 2 / row.median}
        elif row.metric == "wrong_numbers":
            line["wrong"] = round(row.mean)
        elif row.metric == "throttled":
            line["throttled"][row.about] = row.mean
        else:
            line["state"][row.metric] = row.median
    return [Line(instrument=instrument, work=work, gpu=gpu, **line) for (instrument, work, gpu), line in found.items()]


def facts_of(rows: Iterable[Any]) -> dict[str, Facts]:
    """Collect the facts of each GPU by its number, or those of the CPU under an empty one."""
    known: dict[str, dict[str, str]] = {}
    unknown: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.metric == "fact":
            texts, text = (known, row.value) if row.status == "ok" else (unknown, row.message)
            texts.setdefault(row.device, {})[row.about] = text
    return {
        gpu: Facts(known=known.get(gpu, {}), unknown=unknown.get(gpu, {})) for gpu in dict.fromkeys([*known, *unknown])
    }
