"""Expected rates, from recorded runs on the same model, otherwise from its data sheet, and measured rates compared with
them.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cs336_systems.compare import speed
from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.card.lines import Expected, Facts, Key, Line, number

RECORDED, SHEET = "recorded", "data sheet"
USUAL = {"bf16 8192": 0.70, "fp16 8192": 0.70, "fp32 8192": 0.75, "memory": 0.85, "transfers": 0.80, "all_reduce": 0.70}
"""The share of its data sheet's peak that a GPU usually reaches."""
SHEET_MARGIN = 0.25
"""How far below that share a rate may be: it depends on the model, and on the power that a matmul may draw."""
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
"""How far below its reference a rate may be: GPUs of a model, and runs on one GPU, differ by some percent."""
HOST_MARGIN = 0.4
"""The same if the host's speed is measured: hosts differ."""
BY_HOST = ("by the host", "operators")
WIDEST = 0.5


def expectations(
    gpu: str, lines: Iterable[Line], facts: Mapping[str, Facts], references: Iterable[Line]
) -> dict[Key, Expected]:
    """The expected rate of each workload, from reference runs, otherwise from the model's data sheet, if it is
    listed.
    """
    expected, recorded = {}, dict[Key, list[Line]]()
    if sheet := gpu_of(gpu):
        for line in lines:
            usual = USUAL.get(line.instrument) or USUAL.get(" ".join(line.work.split()[:2]))
            if usual and (peak := sheet_peak(sheet, line, facts)):
                expected[line.key] = Expected(value=peak * usual, margin=SHEET_MARGIN, source=SHEET)
    for line in references:
        if line.value:
            recorded.setdefault(line.key, []).append(line)
    return expected | {key: distribution(key, measured) for key, measured in recorded.items()}


def distribution(key: Key, lines: Sequence[Line]) -> Expected:
    """Take the median of recorded rates; the margin grows with the spread of the samples and of the GPUs."""
    values = [line.value for line in lines if line.value]
    middle = statistics.median(values)
    # Robust for many GPUs: 1.48 median absolute deviations are a standard deviation.
    between = 1.4826 * statistics.median(abs(value - middle) for value in values) / middle
    within = statistics.median(line.spread for line in lines)
    clocks = [line.state["sm_clock"] for line in lines if "sm_clock" in line.state]
    return Expected(
        value=middle,
        margin=min(margin_of(*key) + 2 * within + 3 * between, WIDEST),
        source=RECORDED,
        gpus=len(lines),
        sm_clock=statistics.median(clocks) if clocks else None,
    )


def margin_of(instrument: str, work: str) -> float:
    """How far a rate may be below its reference, or below the rates of the other GPUs in the machine."""
    return HOST_MARGIN if work in BY_HOST else MARGIN[instrument]


def sheet_peak(gpu: Gpu, line: Line, facts: Mapping[str, Facts]) -> float | None:
    """The data sheet's peak for a workload in its unit; None if it has none."""
    if line.instrument == "matmul":
        precision = line.work.split()[0]
        return {"bf16": gpu.bf16, "fp16": gpu.bf16, "fp32": gpu.fp32}.get(precision, 0) / 1e12
    if line.instrument == "memory":
        return gpu.bandwidth / 1e9
    if line.instrument == "all_reduce":
        return gpu.link / 1e9 if gpu.link else None
    if line.instrument == "transfers":
        return pcie_peak(facts.get(line.gpu, {}))
    return None


def pcie_peak(facts: Facts) -> float | None:
    """GB/s of the widest and fastest link supported by both the GPU and its slot; None if the driver does not report
    it.
    """
    generation, width = number(facts, "max_link_generation"), number(facts, "max_link_width")
    lane = PCIE_GB_PER_LANE.get(int(generation)) if generation else None
    return lane * width if lane and width else None


def compared(line: Line, expected: Expected | None, lines: Iterable[Line]) -> Line:
    """The line compared with its expected rate, and with the same workload on the other GPUs."""
    if line.value is None:
        return replace(line, expected=expected)
    others = [each.value for each in lines if each.key == line.key and each.gpu != line.gpu and each.value]
    of_others = line.value / statistics.median(others) if others else None
    below = [slower(line.value / expected.value, expected.margin)] if expected else []
    # Pairs of GPUs may be linked differently, unless the data sheet or a recorded run has a link for all.
    if of_others and (expected or line.instrument != "all_reduce"):
        below.append(slower(of_others, margin_of(*line.key)))
    return replace(line, expected=expected, of_others=of_others, slow=any(below) if below else None)


def slower(share: float, margin: float) -> bool:
    """Whether a share of the expected rate is below it by more than the margin."""
    return speed.outcome(-math.log(share), tie=-math.log1p(-margin), reach=0.0) == speed.SLOWER
