"""Answers to `pytorch_attention`: plain attention by itself, its time and its memory."""

import math
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.units import FP32_BYTES, MIB
from scripts.rendering.markup import Table, fixed, mean_std
from scripts.views.data import reason, select, statistic

AGREES = 0.01
"""A measured peak and its closed form that differ by less are the same."""
Cell = tuple[int, int]
"""Sequence length and head dimension."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = select(tables["attention"], compiled=False)
    cells = sorted(set(zip(table["sequence"], table["d"], strict=True)))
    if not cells:
        return {"times": None}
    cases = [(cell, select(table, sequence=cell[0], d=cell[1])) for cell in cells]
    forward, backward = (
        [(statistic(rows, "mean", metric=metric), statistic(rows, "std", metric=metric)) for _, rows in cases]
        for metric in ("forward", "backward")
    )
    memory, peaks = (
        [statistic(rows, "mean", metric=metric) for _, rows in cases]
        for metric in ("memory_before_backward", "peak_memory")
    )
    batch = int(table["batch_size"].iloc[0])
    expected = [plain_bytes_before_backward(batch, *cell) / MIB for cell in cells]
    body = [
        [str(cell[0]), str(cell[1]), *(text or why for text in texts)]
        for (cell, rows), why, *texts in zip(
            cases,
            [reason(rows) for _, rows in cases],
            mean_std(forward),
            mean_std(backward),
            fixed(memory),
            fixed(expected),
            fixed(peaks),
            strict=True,
        )
    ]
    if not any(memory):
        body = [line[:4] for line in body]
    out_of_memory = [cell for cell, rows in cases if (rows["status"] == "oom").any()]
    accounted = min(out_of_memory) if out_of_memory else cells[-1]
    header = ["sequence", "d", "forward / ms", "backward / ms", "in use / MiB", "closed form / MiB", "peak / MiB"]
    constant = min((got - want for got, want in zip(memory, expected, strict=True) if got), default=None)
    return {
        "times": Table(header[: len(body[0])], body, text_columns=0),
        "batch": batch,
        "steps": int(table["steps"].max()),
        "precision": str(table["precision"].iloc[0]),
        "out_of_memory": out_of_memory,
        **account(batch, accounted, dict(zip(cells, memory, strict=True))),
        **peak_account(batch, dict(zip(cells, peaks, strict=True)), constant or 0.0),
        "growth": growth(cells, memory),
        "growth_of_tensors": growth(cells, [value and value - (constant or 0.0) for value in memory]),
        "constant_mib": constant,
    }


def account(batch: int, cell: Cell, memory: Mapping[Cell, float | None]) -> dict[str, Any]:
    """The memory of one configuration, item by item."""
    sequence, d = cell
    return {
        "sequence": int(sequence),
        "d": int(d),
        "vectors_mib": FP32_BYTES * batch * sequence * d / MIB,
        "scores_mib": FP32_BYTES * batch * sequence**2 / MIB,
        "expected_mib": plain_bytes_before_backward(batch, sequence, d) / MIB,
        "measured_mib": memory[cell],
    }


def peak_account(batch: int, peaks: Mapping[Cell, float | None], constant: float) -> dict[str, Any]:
    """The largest peak measured, and whether it is that of the closed form; `constant` is what libraries keep, MiB."""
    peak, cell = max(((peak, cell) for cell, peak in peaks.items() if peak), default=(None, None))
    if peak is None or cell is None:
        return {"peak": None}
    sequence, d = cell
    expected = plain_peak_bytes(batch, sequence, d) / MIB + constant
    return {
        "peak": {
            "sequence": int(sequence),
            "d": int(d),
            "mib": peak,
            "scores_mib": FP32_BYTES * batch * sequence**2 / MIB,
            "expected_mib": expected,
            "agrees": abs(peak / expected - 1) < AGREES,
        }
    }


def growth(cells: list[Cell], memory: list[float | None]) -> float | None:
    """The exponent of memory in the sequence length, over the last doubling at the smallest head dimension."""
    d = min(d for _, d in cells)
    points = [(cell[0], value) for cell, value in zip(cells, memory, strict=True) if cell[1] == d and value]
    if len(points) < 2:
        return None
    (short, less), (long, more) = points[-2:]
    return math.log(more / less) / math.log(long / short)
