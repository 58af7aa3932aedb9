"""Expected rates of a work: by the recorded cards of the same model, or else by its data sheet."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cs336_systems.measure.gpus import Gpu
from scripts.card.lines import Facts, Line

Key = tuple[str, str]
"""Instrument and work."""
RECORDED, SHEET = "recorded", "data sheet"
USUAL = {"bf16 8192": 0.70, "fp16 8192": 0.70, "fp32 8192": 0.75, "memory": 0.85, "transfers": 0.80, "all_reduce": 0.70}
"""Which share of its data sheet's peak a GPU usually reaches."""
SHEET_MARGIN = 0.25
"""How far below that share a rate may be: models differ, and with the power that a matmul may take."""
PCIE_GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane in one direction, by PCIe's generation."""
MARGIN = {
    "matmul": 0.06,
    "memory": 0.05,
    "attention": 0.08,
    "training": 0.08,
    "launches": 0.15,
    "transfers": 0.15,
    "all_reduce": 0.12,
}
"""How far below its reference a rate may be: cards of a model, and runs of a card, differ by some percent."""
HOST_MARGIN = 0.4
"""The same where the host's speed is what is measured: hosts differ."""
BY_HOST = ("by the host", "operators")
WIDEST = 0.5


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected rate of a work."""

    value: float
    margin: float
    """Share of the value by which a rate may be lower."""
    source: str
    cards: int = 0
    """How many recorded GPUs it is the median of."""
    sm_clock: float | None = None
    """Their SM clock meanwhile, MHz."""


def margin_of(instrument: str, work: str) -> float:
    """How far a rate may be below its reference, or below those of the GPUs next to it."""
    return HOST_MARGIN if work in BY_HOST else MARGIN[instrument]


def recorded(cards: Iterable[Mapping[str, Any]]) -> dict[Key, Expected]:
    """Take the median of recorded cards' rates; each GPU of a card counts.

    The margin grows with the spread of the samples, and with that of the cards.
    """
    found: dict[Key, list[Mapping[str, Any]]] = {}
    for card in cards:
        for line in card["lines"]:
            if line["value"] is not None:
                found.setdefault((line["instrument"], line["work"]), []).append(line)
    return {key: _distribution(key, lines) for key, lines in found.items()}


def _distribution(key: Key, lines: list[Mapping[str, Any]]) -> Expected:
    values = [line["value"] for line in lines]
    middle = statistics.median(values)
    # Robust for many cards: 1.48 median absolute deviations are a standard deviation.
    between = 1.4826 * statistics.median(abs(value - middle) for value in values) / middle
    within = statistics.median(line["spread"] for line in lines)
    clocks = [line["state"]["sm_clock"] for line in lines if "sm_clock" in line["state"]]
    return Expected(
        value=middle,
        margin=min(margin_of(*key) + 2 * within + 3 * between, WIDEST),
        source=RECORDED,
        cards=len(lines),
        sm_clock=statistics.median(clocks) if clocks else None,
    )


def by_sheet(gpu: Gpu, lines: Iterable[Line], facts: Mapping[str, Facts]) -> dict[Key, Expected]:
    """Expect the usual share of the data sheet's peak, of the works for which it has one."""
    found = {}
    for line in lines:
        peak, usual = sheet_peak(gpu, line, facts), _usual(line)
        if peak and usual:
            expected = Expected(value=peak * usual, margin=SHEET_MARGIN, source=SHEET)
            found[(line.instrument, line.work)] = expected
    return found


def _usual(line: Line) -> float | None:
    if line.instrument == "matmul":
        return USUAL.get(" ".join(line.work.split()[:2]))
    return USUAL.get(line.instrument)


def sheet_peak(gpu: Gpu, line: Line, facts: Mapping[str, Facts]) -> float | None:
    """The data sheet's peak for a work in its unit; None if it has none."""
    if line.instrument == "matmul":
        precision = line.work.split()[0]
        return {"bf16": gpu.bf16, "fp16": gpu.bf16, "fp32": gpu.fp32}.get(precision, 0) / 1e12
    if line.instrument == "memory":
        return gpu.bandwidth / 1e9
    if line.instrument == "all_reduce":
        return gpu.link / 1e9 if gpu.link else None
    if line.instrument == "transfers" and line.gpu in facts:
        return pcie_peak(facts[line.gpu])
    return None


def pcie_peak(facts: Facts) -> float | None:
    """GB/s of the widest and fastest link that a GPU and its slot have together; None if the driver does not say."""
    generation, width = facts.number("max_link_generation"), facts.number("max_link_width")
    lane = PCIE_GB_PER_LANE.get(int(generation)) if generation else None
    return lane * width if lane and width else None
