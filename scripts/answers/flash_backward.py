"""Answers to `flash_backward`: the backward pass as a Triton kernel and as compiled PyTorch."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.data import ratio, select, statistic
from scripts.implementations import availability
from scripts.markup import Table


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["flash"]
    return availability(table) | backward_ways(select(table, compiled_call=False))


def backward_ways(rows: DataFrame) -> dict[str, Any]:
    """The backward pass as Triton kernels and as compiled PyTorch, under the same forward kernel."""
    ways = ["triton", "triton_compiled_backward"]
    steps = select(rows, metric="backward")
    slow = select(steps, implementation=ways[1])
    cells = sorted(set(zip(slow["precision"], slow["sequence"], slow["d"], strict=True)))
    body, gains = [], []
    for precision, sequence, d in cells:
        pair = [
            statistic(steps, "median", implementation=way, precision=precision, sequence=sequence, d=d, heads=1)
            for way in ways
        ]
        gain = ratio(pair[1], pair[0])
        if gain:
            gains.append(gain)
            body.append([precision, str(sequence), str(d), *(f"{value:.3f}" for value in pair), f"{gain:.1f}×"])
    header = ["precision", "sequence", "d", "Triton / ms", "compiled PyTorch / ms", "ratio"]
    return {
        "backward_ways": Table(header, body) if body else None,
        "backward_least": min(gains, default=None),
        "backward_most": max(gains, default=None),
    }
