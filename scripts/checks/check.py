"""What a self-check is, and what the checks share."""

from dataclasses import dataclass

TOLERANCE = {"GPU": 0.15, "CPU": 0.5}
"""Relative disagreement between two measurements of one thing that needs no explanation; a CPU has other work too."""


@dataclass(frozen=True)
class Check:
    """The outcome of one self-check."""

    check: str
    """What must hold."""
    outcome: str
    """passed, failed, or not applicable."""
    detail: str
    """The figures behind the outcome."""


def verdict(check: str, complaints: list[str], examined: int, summary: str) -> Check:
    """A check's outcome from the complaints of the cases it examined."""
    if not examined:
        return Check(check, "not applicable", summary)
    if complaints:
        more = f" (and {len(complaints) - 3} more)" if len(complaints) > 3 else ""
        return Check(check, "failed", "; ".join(complaints[:3]) + more)
    return Check(check, "passed", summary)
