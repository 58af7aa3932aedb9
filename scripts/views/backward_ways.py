"""The backward pass as Triton kernels and as compiled PyTorch, for `flash_backward` and its figure."""

from typing import Any

from pandas import DataFrame

from scripts.rendering.markup import LONGEST_TABLE, Table, fixed_point
from scripts.views.data import one, ratio, select, statistic
from scripts.views.spread import legend, marked
from scripts.views.steps import HOST_BOUND

WAYS = ("triton", "triton_compiled_backward")


def backward_ways(rows: DataFrame) -> dict[str, Any]:
    """Both ways at every shape, and how they compare where the device sets the pace of both."""
    pairs = compared(rows)
    body = [
        [
            *(pair["precision"], str(pair["sequence"]), str(pair["d"])),
            *(marked(row) for row in pair["rows"]),
            f"{pair['gain']:.1f}×",
            *(fixed_point(share and 100 * share, 0) for share in pair["busy"]),
        ]
        for pair in pairs
    ]
    header = ["precision", "sequence", "d", "Triton", "compiled PyTorch", "ratio", "Triton", "compiled PyTorch"]
    groups = [("", 3), ("backward / ms", 2), ("", 1), ("device busy / %", 2)]
    table = Table(header, body, groups=groups) if body else None
    paced = [pair["gain"] for pair in pairs if not pair["host_bound"]]
    waiting = [pair for pair in pairs if pair["host_bound"]]
    return {
        "backward_ways": table,
        "backward_marks": legend(table),
        "longest_table": LONGEST_TABLE,
        "long_tables": len(body) > LONGEST_TABLE,
        "backward_paced": paced,
        "backward_host_bound": len(waiting),
        "backward_cells": len(pairs),
        "backward_host_gains": [pair["gain"] for pair in waiting],
    }


def compared(rows: DataFrame) -> list[dict[str, Any]]:
    """Each shape that was measured both ways: its rows, the compiled time over Triton's, and the device's part.

    The device's part of a way is that of both passes together, a replayed graph's time over the calls', and None for
    lengths without a replay, at which the host is ahead. Where it is small for either, the host sets its pace.
    """
    steps = select(rows, metric="backward")
    slow = select(steps, implementation=WAYS[1])
    found = []
    for cell in sorted(set(zip(slow["precision"], slow["d"], slow["sequence"], strict=True))):
        shape = dict(zip(("precision", "d", "sequence"), cell, strict=True))
        pair = [one(steps, implementation=way, **shape) for way in WAYS]
        gain = ratio(*(None if row is None else float(row["median"]) for row in reversed(pair)))
        if gain:
            busy = [share(select(rows, implementation=way, **shape)) for way in WAYS]
            waits = any(part is not None and part < HOST_BOUND for part in busy)
            found.append({**shape, "rows": pair, "gain": gain, "busy": busy, "host_bound": waits})
    return found


def share(rows: DataFrame) -> float | None:
    """A replayed graph's time over that of the calls it holds."""
    return ratio(*(statistic(rows, "median", metric=metric) for metric in ("graph", "forward_backward")))
