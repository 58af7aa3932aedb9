"""Answers to `mixed_precision_accumulation`."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.data import select, statistic
from scripts.markup import Table

WAYS = [
    ("fp32 + fp32", {"accumulator": "fp32", "addend": "fp32", "cast": False}),
    ("fp16 + fp16", {"accumulator": "fp16", "addend": "fp16", "cast": False}),
    ("fp32 + fp16", {"accumulator": "fp32", "addend": "fp16", "cast": False}),
    ("fp32 + (fp16 cast to fp32)", {"accumulator": "fp32", "addend": "fp16", "cast": True}),
    ("bf16 + bf16", {"accumulator": "bf16", "addend": "bf16", "cast": False}),
    ("fp32 + bf16", {"accumulator": "fp32", "addend": "bf16", "cast": False}),
]
KEYS = ["fp32", "fp16", "mixed", "cast", "bf16", "mixed_bf16"]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Sums and errors of the handout's four variants, and of bf16."""
    table = tables["accumulation"]
    body: list[list[str]] = []
    values: dict[str, float | None] = {}
    for key, (title, way) in zip(KEYS, WAYS, strict=True):
        rows = select(table, **way)
        total = statistic(rows, "mean", metric="sum")
        error = statistic(rows, "mean", metric="relative_error")
        addend = statistic(rows, "mean", metric="rounded_addend")
        last = statistic(rows, "mean", metric="last_step")
        values |= {key: total, f"{key}_error": error, f"{key}_last": last}
        if total is not None and error is not None:
            body.append(
                [title, f"{addend:.9f}", f"{total:.6f}", f"{100 * error:.4f}", "–" if last is None else f"{last:.7f}"]
            )
    header = ["accumulator + addend", "0.01 rounded to", "sum", "relative error / %", "last addition adds"]
    return {**values, "sums": Table(header, body), "additions": int(table["additions"].max()) if len(table) else None}
