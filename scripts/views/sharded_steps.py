"""What the sections on sharded training share: their table, and what they say of a cell."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.markup import Table
from scripts.views.data import select
from scripts.views.fsdp import OURS, PYTORCH, WRAPPERS, cell_name, cells_of
from scripts.views.wrappers import Column, common_setting


def contender_table(table: DataFrame, rows: DataFrame, columns: Sequence[Column]) -> Table | None:
    """Contenders cell by cell; those that could not be measured have their reason.

    Args:
        table: the experiment's rows, of the sizes to show.
        rows: of `contenders`, of those sizes.
        columns: of which those that say nothing of any of them are left out.
    """
    if not len(rows):
        return None
    columns = [column for column in columns if rows[column.needs].notna().any()]
    lost = table[(table["metric"] == "step") & (table["status"] != "ok")]
    lost = lost.assign(cell=[cell_name(row) for _, row in lost.iterrows()])
    body: list[list[str]] = []
    for cell in cells_of(rows):
        name = cell["cell"].iloc[0]
        body.append([name])
        for wrapper, title in WRAPPERS.items():
            for _, row in select(cell, wrapper=wrapper).iterrows():
                body.append([title, *(column.text(row) for column in columns)])
            for _, row in select(lost, cell=name, wrapper=wrapper).iterrows():
                body.append([title, *[f"not measured: {row['message']}"] * len(columns)])
    groups = [("", 1), *((group, len(list(same))) for group, same in groupby(columns, lambda column: column.group))]
    return Table(["", *(column.title for column in columns)], body, groups=groups)


def setting(table: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """What all contenders have in common."""
    skipped = select(table, metric="device_busy", status="skipped")
    return {
        **common_setting(rows),
        "bf16": bool((rows["precision"] == "bf16").any()),
        "negative": bool((rows["exposed"] < 0).any()),
        "profiled": bool(rows["timeline_length"].notna().any()),
        "not_profiled": skipped["message"].iloc[0] if len(skipped) else "",
    }


def best(cell: DataFrame, *wrappers: str) -> Series | None:
    """The contender with the shortest median step among some, or None where none of them was measured."""
    found = cell[cell["wrapper"].isin(wrappers)]
    return found.sort_values("median", kind="stable").iloc[0] if len(found) else None


def ours_beside(rows: DataFrame, *wrappers: str) -> list[dict[str, Any]]:
    """In each cell our faster FSDP beside the fastest of other contenders: steps and peaks, of all of their memory."""
    found = []
    for cell in cells_of(rows):
        ours, other = best(cell, *OURS), best(cell, *wrappers)
        if ours is None or other is None:
            continue
        outcome = "same"
        if ours["p80"] < other["p20"]:
            outcome = "faster"
        elif ours["p20"] > other["p80"]:
            outcome = "slower"
        found.append(
            {
                "cell": ours["cell"],
                "step": float(ours["median"] / other["median"]),
                "peak": float(ours["memory"] / other["memory"]),
                "outcome": outcome,
            }
        )
    return found


def span_of(pairs: Sequence[dict[str, Any]], name: str) -> tuple[float, float] | None:
    """The least and the most of a number, or None where it was never measured."""
    found = [pair[name] for pair in pairs if pair[name] == pair[name]]
    return (min(found), max(found)) if found else None


def summary_of(pairs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Steps and peaks of `ours_beside`, and in how many cells ours is faster or slower by more than samples scatter."""
    if not pairs:
        return None
    count: Callable[[str], int] = [pair["outcome"] for pair in pairs].count
    return {
        "step": span_of(pairs, "step"),
        "peak": span_of(pairs, "peak"),
        "cells": len(pairs),
        **{outcome: count(outcome) for outcome in ("faster", "slower", "same")},
    }


def against_pytorch(rows: DataFrame) -> dict[str, Any] | None:
    """Our faster FSDP beside fully_shard."""
    return summary_of(ours_beside(rows, PYTORCH))
