"""What a self-check is, and what the checks share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pandas import Series

from cs336_systems.accounting.units import MIB
from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.rendering.markup import NOT_MEASURED, fixed_point

TOLERANCE = {"GPU": 0.15, "CPU": 0.5}
"""Relative difference between two measurements of one thing that needs no explanation; a CPU does other work too."""
HONEST = 0.03
"""Relative difference of a time from itself in another cell or launch, for which no code is to blame: a GPU's clock
follows its temperature and power, and memory is laid out anew."""


def between_cells(tolerance: float) -> float:
    """The relative difference allowed between times of two cells, each off by HONEST, `tolerance` of it explained."""
    return (1 + tolerance) * (1 + HONEST) / (1 - HONEST) - 1


def told(value: float | None, decimals: int = 0) -> str:
    """A number in a complaint, or that there is none."""
    return fixed_point(value, decimals, missing=NOT_MEASURED)


@dataclass(frozen=True)
class Timing:
    """What was computed, and how long it took."""

    cell: str
    """The cell in words."""
    flops: float
    """Operations of its matrix multiplies."""
    milliseconds: float
    """Its median."""
    precision: str
    """fp32 or bf16."""


@dataclass(frozen=True)
class Check:
    """The outcome of one self-check."""

    check: str
    """What must hold."""
    outcome: str
    """passed, failed, or not applicable."""
    detail: str
    """The figures behind the outcome."""


def conclude(check: str, complaints: list[str], examined: int, summary: str) -> Check:
    """A check's outcome from the complaints of the cases it examined."""
    if not examined:
        return Check(check, "not applicable", summary)
    if complaints:
        more = f" (and {len(complaints) - 3} more)" if len(complaints) > 3 else ""
        return Check(check, "failed", "; ".join(complaints[:3]) + more)
    return Check(check, "passed", summary)


def under_the_roofline(
    check: str, gpu: str, timings: Iterable[Timing], ceiling: Callable[[Gpu, str], float] = Gpu.flops
) -> Check:
    """Check that no timing is faster than its matrix multiplies at the GPU's peak: `ceiling` by precision, FLOP/s."""
    peak = gpu_of(gpu)
    if peak is None:
        return Check(check, "not applicable", f"no peak rate is listed for {gpu or 'a CPU'}")
    shares = [(t.cell, t.flops / (t.milliseconds / 1e3) / ceiling(peak, t.precision)) for t in timings]
    complaints = [f"{cell}: {share:.0%} of the peak" for cell, share in shares if share > 1]
    best = max((share for _, share in shares), default=0.0)
    return conclude(check, complaints, len(shares), f"{len(shares)} timings; the closest reaches {best:.0%}")


def outside(row: Series, cell: str, least: int, digits: int = 0) -> list[str]:
    """A complaint if a row's memory is not between `least` bytes and what the device has."""
    low, high = least / MIB, row["gpu_memory"] / MIB
    if low <= row["mean"] <= high:
        return []
    return [f"{cell}: {row['mean']:.{digits}f} MiB, not between {low:.{digits}f} and {high:.0f}"]
