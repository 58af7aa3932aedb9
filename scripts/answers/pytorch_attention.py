"""Answers to `pytorch_attention`: plain attention by itself, its time and its memory."""

import math
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import plain_bytes_before_backward
from cs336_systems.accounting.units import FP32_BYTES, MIB
from scripts.data import reason, select, statistic
from scripts.markup import Table, fixed


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = select(tables["attention"], compiled=False)
    cells = sorted(set(zip(table["sequence"], table["d"], strict=True)))
    if not cells:
        return {"times": None}
    cases = [(cell, select(table, sequence=cell[0], d=cell[1])) for cell in cells]
    forward, backward, memory = (
        [statistic(rows, column, metric=metric) for _, rows in cases]
        for metric, column in [("forward", "mean"), ("backward", "mean"), ("memory_before_backward", "mean")]
    )
    batch = int(table["batch_size"].iloc[0])
    expected = [plain_bytes_before_backward(batch, *cell) / MIB for cell in cells]
    peaks = [statistic(rows, "mean", metric="peak_memory") for _, rows in cases]
    body = [
        [str(cell[0]), str(cell[1]), *(text or why for text in texts)]
        for (cell, rows), why, *texts in zip(
            cases,
            [reason(rows) for _, rows in cases],
            fixed(forward),
            fixed(backward),
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
    return {
        "times": Table(header[: len(body[0])], body, text_columns=0),
        "batch": batch,
        "steps": int(table["steps"].max()),
        "precision": str(table["precision"].iloc[0]),
        "out_of_memory": out_of_memory,
        **account(batch, accounted, dict(zip(cells, memory, strict=True))),
        "growth": growth(cells, memory),
        "constant_mib": min((got - want for got, want in zip(memory, expected, strict=True) if got), default=None),
    }


def account(batch: int, cell: tuple[int, int], memory: Mapping[tuple[int, int], float | None]) -> dict[str, Any]:
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


def growth(cells: list[tuple[int, int]], memory: list[float | None]) -> float | None:
    """The exponent of memory in the sequence length, over the last doubling at the smallest head dimension."""
    d = min(d for _, d in cells)
    points = [(cell[0], value) for cell, value in zip(cells, memory, strict=True) if cell[1] == d and value]
    if len(points) < 2:
        return None
    (short, less), (long, more) = points[-2:]
    return math.log(more / less) / math.log(long / short)
