"""Short attention calls: what the host and what the device takes, for `flash_benchmarking`."""

from collections.abc import Iterable
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import contender_of
from scripts.checks.attention import name_flash
from scripts.checks.attention_calls import adds_up, calls, needed_for_device_bound
from scripts.rendering.markup import Table, significant
from scripts.views.attention_calls import titles, without_own
from scripts.views.backward_ways import share
from scripts.views.data import select, statistic
from scripts.views.steps import HOST_BOUND


def short_answers(rows: DataFrame) -> dict[str, Any]:
    """Where the host sets the pace: device time from a replayed graph, and what a call costs the host."""
    timed = select(rows, precision="bf16")
    rows = timed[timed["metric"].isin(["graph", "host"])]
    cells = [
        cell
        for cell in sorted(set(zip(rows["sequence"], rows["d"], strict=True)))
        if len(select(rows, sequence=cell[0], d=cell[1], implementation="sdpa_flash"))
    ]
    present = titles(rows)
    own = [name for name in present if name not in titles(without_own(rows))]
    names = [name for name in ("triton", "sdpa_flash", "plain", *own) if name in present]
    if not cells or "triton" not in names:
        return {"short": None}
    medians = {
        (metric, cell, name): statistic(rows, "median", metric=metric, sequence=cell[0], d=cell[1], implementation=name)
        for metric in ("graph", "host")
        for cell in cells
        for name in names
    }
    body = [
        [
            *map(str, cell),
            *(
                str(significant(value * scale)) if (value := medians[metric, cell, name]) else "–"
                for metric, scale in (("graph", 1e3), ("host", 1))
                for name in names
            ),
        ]
        for cell in cells
    ]
    columns = [present[name] for name in names]
    groups = [("", 2), ("device / µs", len(names)), ("host / µs", len(names))]

    def against_sdpa(metric: str) -> list[float]:
        pairs = [(medians[metric, cell, "sdpa_flash"], medians[metric, cell, "triton"]) for cell in cells]
        return [theirs / ours for theirs, ours in pairs if ours and theirs]

    device, host = against_sdpa("graph"), against_sdpa("host")
    return {
        "short": Table(["sequence", "d", *columns * 2], body, text_columns=0, groups=groups),
        "short_device_least": min(device, default=None),
        "short_device_most": max(device, default=None),
        "short_host": 1 / min(host) if host else None,
        "short_waiting": [waiting(timed, name, cells) for name in ("triton", "sdpa_flash")],
    }


def waiting(rows: DataFrame, name: str, cells: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """In how many of some lengths and head dimensions calls of an implementation leave the device waiting."""
    own = select(rows, implementation=name)
    shares = [share(select(own, sequence=sequence, d=d)) for sequence, d in cells]
    known = [part for part in shares if part is not None]
    return {"name": contender_of(name).title, "cells": sum(part < HOST_BOUND for part in known), "of": len(known)}


def disturbed(table: DataFrame) -> list[dict[str, Any]]:
    """Short calls that take longer than their parts and what a call costs the host: something else ran."""
    cells = calls(table)
    return [
        {
            "name": name_flash(row),
            "whole": float(row["forward_backward"]),
            "parts": float(row["forward"] + row["backward"]),
            "host": float(row["host"]),
        }
        for _, row in cells[cells["forward_backward"] < needed_for_device_bound(cells)].iterrows()
        if row["forward_backward"] > row["forward"] + row["backward"] and not adds_up(row)
    ]
