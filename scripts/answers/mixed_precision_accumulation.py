"""Answers to `mixed_precision_accumulation`."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.markup import Table, fixed_point
from scripts.views.data import select, statistic

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
            numbers = [(addend, 9), (total, 6), (100 * error, 4), (last, 7)]
            body.append([title, *(fixed_point(number, decimals) for number, decimals in numbers)])
    header = ["accumulator + addend", "0.01 rounded to", "sum", "relative error / %", "last addition adds"]
    return {**values, "sums": Table(header, body), "additions": int(table["additions"].max()) if len(table) else None}
