"""Answers to `benchmarking_mixed_precision`: dtypes under autocast, and fp32 against bf16 by size."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.data import MODES, one, ratio, reason, reference_context, select, size_order, statistic, steady_warmup
from scripts.markup import Table, Tile, times

COMPONENTS = {
    "parameters": "parameters",
    "fc1_output": "output of the first Linear",
    "norm_output": "output of LayerNorm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients",
}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    return {**dtype_answers(tables["autocast_dtypes"]), **speed_answers(tables["end_to_end"])}


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """What bf16 gains at the largest size, and at the smallest."""
    if not found["largest"]:
        return []
    (small, less), (large, more) = found["smallest"], found["largest"]
    what = f"bf16 autocast over fp32, forward and backward of the {large} model"
    return [Tile(times(more), f"{what} ({times(less)} for {small})")]


def dtype_answers(table: DataFrame) -> dict[str, Any]:
    """The dtype of each component under either autocast."""
    seen = {
        (autocast, component): row["value"]
        for autocast in ("fp16", "bf16")
        for component in COMPONENTS
        if (row := one(table, autocast=autocast, metric=component)) is not None
    }
    body = [
        [title, *(seen.get((autocast, component), "–") for autocast in ("fp16", "bf16"))]
        for component, title in COMPONENTS.items()
    ]
    return {
        "dtypes": Table(["component", "autocast to fp16", "autocast to bf16"], body, text_columns=3),
        "norm_fp16": seen.get(("fp16", "norm_output")),
        "norm_bf16": seen.get(("bf16", "norm_output")),
        "logits_fp16": seen.get(("fp16", "logits")),
    }


def speed_answers(table: DataFrame) -> dict[str, Any]:
    """Median times in both precisions at the reference context, and their ratio."""
    rows = select(table, compiled=False, attention="plain")
    context = reference_context(rows)
    rows = select(rows, context=context, warmup=steady_warmup(rows))
    sizes = size_order(rows)
    body = []
    speedup: dict[str, list[float | None]] = {mode: [] for mode in MODES}
    for size in sizes:
        cell = select(rows, size=size)
        line = [cell["label"].iloc[0]]
        for mode in MODES:
            fp32, bf16 = (statistic(cell, "median", metric="step", mode=mode, precision=p) for p in ("fp32", "bf16"))
            gain = ratio(fp32, bf16)
            speedup[mode].append(gain)
            if gain is None:
                line += [reason(select(cell, mode=mode, precision="fp32" if fp32 is None else "bf16"))] * 3
            else:
                line += [f"{fp32:.1f}", f"{bf16:.1f}", f"{gain:.2f}×"]
        body.append(line)
    trained = [
        (select(rows, size=size)["label"].iloc[0], gain)
        for size, gain in zip(sizes, speedup["forward_backward"], strict=True)
        if gain
    ]
    gains = [gain for _, gain in trained]
    header = ["size", *["fp32", "bf16", "ratio"] * len(MODES)]
    return {
        "context": context,
        "speed": Table(header, body, groups=[("", 1), *((f"{title} / ms", 3) for title in MODES.values())]),
        "smallest": trained[0] if trained else None,
        "largest": trained[-1] if trained else None,
        "grows": len(gains) > 1 and gains[-1] > 1.1 * gains[0],
        "slower": [label for label, gain in trained if gain < 1],
    }
