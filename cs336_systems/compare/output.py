"""A comparison as JSON, as CSV, and as the text of a terminal."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from cs336_systems.compare.comparison import CPU_TAIL, SAMPLES, Compared, Comparison
from cs336_systems.compare.speed import FASTER, SLOWER, UNDECIDED, VERDICTS
from cs336_systems.compare.statistics import FEWEST_UNCHANGED, LEVEL

SHOWN = 20
"""Number of cells of each kind listed on the terminal."""
FEW = 3
FIRST: Mapping[str, int] = {"step": 0, "handout": 1, "forward_backward": 2, "kernel": 4}
"""Metrics in the order in which they are listed: whole steps and attention first, single kernels last."""
OTHER = 3
BOUNDS = ("matmul", "memory", "communication", "host", "unknown")


def cell_json(cell: Compared) -> dict[str, Any]:
    """A compared cell as plain values."""
    values, (low, high) = asdict(cell), cell.difference.interval()
    del values["difference"]
    return values | {
        "ratio": cell.difference.ratio,
        "low": low,
        "high": high,
        "resolution": cell.difference.resolution(),
    }


def to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values, for `json.dump`."""
    return vars(comparison) | {
        "false_discovery_rate": LEVEL,
        "counts": {verdict: comparison.count(verdict) for verdict in VERDICTS},
        "cells": [cell_json(cell) for cell in comparison.cells],
    }


def to_csv(comparison: Comparison) -> str:
    """One line per compared cell, with what each side's tokens cost."""
    import pandas  # takes longer than the comparison

    lines = [{name: value for name, value in cell_json(cell).items() if value is not None} for cell in comparison.cells]
    return pandas.json_normalize(lines, sep="_").to_csv(index=False)


def to_text(comparison: Comparison) -> str:
    """Format a comparison for a terminal: differences, counts, what bounds them, and the cells that changed most."""
    a, b = comparison.a, comparison.b
    lines = [f"{b} compared with {a}; times in both: {len(comparison.cells)}", ""]
    lines += [f"  {name}: {one} -> {other}" for name, (one, other) in comparison.differs.items()]
    if comparison.same_code:
        lines += [] if comparison.differs else ["  Same machine and versions."]
        changed = ", ".join(name for name, same in comparison.same_code.items() if not same)
        lines.append(f"  code: {f'differs for {changed}' if changed else 'the same'}")
    if comparison.cells[0].experiment == SAMPLES:
        device, other = ("GPU", "cpu") if comparison.on_gpu else ("CPU", "gpu")
        lines.append(f"  Treated as {device} times; if they are not, add --on {other}.")
    lines += ["", f"  {counted(comparison.cells)}"]
    lines.append(
        f"  {LEVEL:.0%} of the faster and slower verdicts are expected to be wrong; same: within"
        f" {comparison.margin:.0%}; intervals: {comparison.widened:.2f} times the calibrated width."
    )
    lines += undecided_lines(comparison)
    for side, only in ((a, comparison.only_a), (b, comparison.only_b)):
        if only:
            lines.append(f"  {len(only)} only in {side}: {listed(only)}")
    lines += ["", *bound_lines(comparison.cells)]
    for verdict in (SLOWER, FASTER):
        changed_most = sorted((cell for cell in comparison.cells if cell.verdict == verdict), key=rank)
        if changed_most:
            lines += ["", f"{verdict} in {b} (ratio to {a}, with its interval):", *grouped_lines(changed_most[:SHOWN])]
            lines += [f"  and {len(changed_most) - SHOWN} more"] if len(changed_most) > SHOWN else []
    return "\n".join(lines)


def listed(names: Sequence[str]) -> str:
    """A few cells by name, many by experiment."""
    if len(names) <= FEW:
        return "; ".join(names)
    kinds = Counter(name.partition(" (")[0] for name in names).most_common()
    rest = sum(count for _, count in kinds[FEW:])
    return ", ".join(f"{count} of {kind}" for kind, count in kinds[:FEW]) + (f", and {rest} more" if rest else "")


def counted(cells: Sequence[Compared]) -> str:
    """The number of cells with each verdict."""
    counts = Counter(cell.verdict for cell in cells)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def undecided_lines(comparison: Comparison) -> Iterator[str]:
    """The reasons why times cannot be decided, with the number of times."""
    undecided = [cell for cell in comparison.cells if cell.verdict == UNDECIDED]
    changes = [cell.difference.resolution() for cell in undecided if cell.comparable]
    if changes and not comparison.on_gpu and comparison.widened == CPU_TAIL:
        yield (
            f"  {len(changes)} cannot be decided: calibrating CPU times needs {FEWEST_UNCHANGED} or more times of"
            " unchanged code"
        )
    elif changes:
        yield (
            f"  {len(changes)} cannot be decided: the smallest detectable change is {min(changes):.1%} at best, with a"
            f" median of {median(changes):.1%}"
        )
    for reason, count in Counter(cell.reason for cell in undecided if not cell.comparable).most_common():
        yield f"  {count} cannot be decided: {reason}"


def rank(cell: Compared) -> tuple[int, float]:
    """The position of a cell in a list: requested cells first, then the largest change."""
    return FIRST.get(cell.metric, OTHER), -abs(math.log(cell.difference.ratio))


def bound_lines(cells: Sequence[Compared]) -> Iterator[str]:
    """For each bound, the median ratio of the times with a verdict."""
    for bound in BOUNDS:
        comparable = [cell for cell in cells if cell.bound == bound and cell.comparable]
        if comparable:
            ratio = median(cell.difference.ratio for cell in comparable)
            yield f"  {bound_by(bound)}: median ratio {ratio:.3f}; {counted(comparable)}"


def bound_by(bound: str) -> str:
    """A bound as an adjective."""
    return "unknown bound" if bound == BOUNDS[-1] else f"{bound}-bound"


def grouped_lines(cells: Sequence[Compared]) -> Iterator[str]:
    """Lines of cells grouped by what bounds them, in the order of each group's first cell."""
    for bound in dict.fromkeys(cell.bound for cell in cells):
        yield f" {bound_by(bound)}"
        yield from cell_lines([cell for cell in cells if cell.bound == bound])


def cell_lines(cells: Sequence[Compared]) -> Iterator[str]:
    """A line for each cell: the ratio with its interval, both medians, the name, and the price of a step's tokens."""
    for cell in cells:
        low, high = cell.difference.interval()
        ratio = f"{cell.difference.ratio:.3f} [{low:.3f}, {high:.3f}]"
        prices = [cost.price for cost in (cell.cost_a, cell.cost_b) if cost and cost.price]
        price = f"; {prices[0]:.3g} -> {prices[1]:.3g} per million tokens" if len(prices) == 2 else ""
        yield f"  {ratio}  {cell.a:.4g} -> {cell.b:.4g} {cell.unit}  {cell.name}{price}"
