"""A comparison as JSON, as CSV, and as the text of a terminal."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cs336_systems.compare.comparison import Compared, Comparison
from cs336_systems.compare.speed import FASTER, SLOWER, VERDICTS

SHOWN = 20
"""Cells that the terminal names of each kind."""


def cell_json(cell: Compared, level: float) -> dict[str, Any]:
    """A compared cell as plain values."""
    low, high = cell.difference.interval()
    values = {name: getattr(cell, name) for name in ("experiment", "cell", "details", "metric", "unit", "a", "b")}
    return values | {
        "ratio": cell.difference.ratio,
        "low": low,
        "high": high,
        "resolution": cell.difference.resolution(level),
        "verdict": cell.verdict,
        "reason": cell.reason,
        "bound": cell.bound,
        "same_code": cell.same_code,
        "cost_a": asdict(cell.cost_a) if cell.cost_a else None,
        "cost_b": asdict(cell.cost_b) if cell.cost_b else None,
    }


def to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values, for `json.dump`."""
    return {
        "a": comparison.a,
        "b": comparison.b,
        "false_discovery_rate": comparison.level,
        "margin": comparison.margin,
        "widened": comparison.widened,
        "counts": {verdict: comparison.count(verdict) for verdict in VERDICTS},
        "differs": {name: list(both) for name, both in comparison.stated.items()},
        "same_code": dict(comparison.code),
        "only_a": list(comparison.only_a),
        "only_b": list(comparison.only_b),
        "cells": [cell_json(cell, comparison.level) for cell in comparison.cells],
    }


def to_csv(comparison: Comparison) -> str:
    """One line per compared cell."""
    file = io.StringIO(newline="")
    writer: csv.DictWriter[str] | None = None
    for cell in comparison.cells:
        values = cell_json(cell, comparison.level)
        for side in ("a", "b"):
            found = values.pop(f"cost_{side}") or {}
            values[f"price_per_million_tokens_{side}"] = found.get("price")
            values[f"joules_per_token_{side}"] = found.get("joules")
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(values), lineterminator="\n")
            writer.writeheader()
        writer.writerow(values)
    return file.getvalue()


def to_text(comparison: Comparison) -> str:
    """Format a comparison for a terminal: differences, counts, and the cells that changed most."""
    lines = [f"B, {comparison.b}, against A, {comparison.a}: {len(comparison.cells)} times of common cells", ""]
    lines += [f"  {name}: {a} -> {b}" for name, (a, b) in comparison.stated.items()] or ["  Same machine and versions."]
    changed = ", ".join(name for name, same in comparison.code.items() if not same)
    lines.append(f"  code: {f'differs for {changed}' if changed else 'the same'}")
    lines += ["", "  " + ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in VERDICTS)]
    lines.append(
        f"  False discovery rate {comparison.level:.0%}; same: within {comparison.margin:.0%}; intervals"
        f" {comparison.widened:.2f} times the calibrated ones."
    )
    for side, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            rest = f", and {len(only) - 3} more" if len(only) > 3 else ""
            lines.append(f"  {len(only)} cells only in {side}: {'; '.join(only[:3])}{rest}")
    for verdict in (SLOWER, FASTER):
        found = [cell for cell in comparison.cells if cell.verdict == verdict]
        found.sort(key=lambda cell: -abs(math.log(cell.difference.ratio)))
        if found:
            lines += ["", f"{verdict}:", *cell_lines(found[:SHOWN])]
            lines += [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join(lines)


def cell_lines(cells: Sequence[Compared]) -> list[str]:
    """A line for each cell: the ratio with its interval, both medians, the bound and the name."""
    lines = []
    for cell in cells:
        low, high = cell.difference.interval()
        ratio = f"{cell.difference.ratio:.3f} [{low:.3f}, {high:.3f}]"
        lines.append(f"  {ratio}  {cell.a:.4g} -> {cell.b:.4g} {cell.unit}  {cell.bound}  {cell.name}")
    return lines
