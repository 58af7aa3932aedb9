"""Attention by itself, eager and compiled, for `torch_compile`."""

from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.attention import Attention
from scripts.rendering.markup import Table, fixed_point
from scripts.views.cells import side_by_side
from scripts.views.data import one, ratio, reason, select
from scripts.views.spread import legend, marked
from scripts.views.steps import HOST_BOUND

PASSES = ("forward", "backward")
WAITS = 2
"""A host-bound time grows by less than this factor while the work grows with the square of the length."""


def attention_answers(table: DataFrame) -> dict[str, Any]:
    """(a) Plain attention, eager next to compiled: times, where compiling loses and why, and peaks."""
    if table["compiled"].nunique() < 2:
        return {"attention": None}
    shown = attention_table(table)
    pairs = paired(table)
    lost = pairs[pairs["gain"] < 1]
    gained = pairs[pairs["gain"] > 1]
    return {
        "attention": shown,
        "attention_marks": legend(shown),
        "attention_cells": len(pairs),
        "attention_lost": len(lost),
        "attention_least": extreme(pairs, "idxmin"),
        "attention_most": extreme(pairs, "idxmax"),
        "attention_lost_to": int(lost["sequence"].max()) if len(lost) else None,
        # From this length up compiling gains in every cell.
        "attention_gains_from": int(gained.loc[gained["sequence"] > lost["sequence"].max(), "sequence"].min())
        if (gained["sequence"] > lost["sequence"].max()).any()
        else None,
        "attention_pace": pace(lost),
        "attention_flat": flat(select(pairs, d=pairs["d"].min()), lost),
        "attention_peak": peaks(pairs),
    }


def attention_table(table: DataFrame) -> Table:
    """One line per shape; peaks where memory was counted."""
    counted = len(select(table, metric="peak_memory")) > 0
    body = []
    for sequence, d in sorted(set(zip(table["sequence"], table["d"], strict=True))):
        rows = select(table, sequence=sequence, d=d)
        line = [str(sequence), str(d)]
        for metric in (*PASSES, *(["peak_memory"] if counted else [])):
            eager, fast = (one(rows, metric=metric, compiled=compiled) for compiled in (False, True))
            gain = ratio(*(None if row is None else row["median"] for row in (eager, fast)))
            if metric == "peak_memory":
                line += [fixed_point(None if row is None else row["mean"]) for row in (eager, fast)]
            elif gain is None:
                line += [reason(select(rows, compiled=eager is not None))] * 3
            else:
                line += [marked(eager), marked(fast), f"{gain:.2f}×"]
        body.append(line)
    header = ["sequence", "d", *["eager", "compiled", "ratio"] * 2]
    groups = [("", 2), ("forward / ms", 3), ("backward / ms", 3)]
    if counted:
        header, groups = [*header, "eager", "compiled"], [*groups, ("peak / MiB", 2)]
    return Table(header, body, text_columns=0, groups=groups)


def paired(table: DataFrame) -> DataFrame:
    """One row per shape that was measured both ways.

    Columns: the parameters; `eager` and `compiled`, both passes together, ms; `gain`, their quotient; with `_busy`
    behind a name the share of that time in which the device worked, and with `_peak` the peak, MiB: NaN where not
    measured.
    """
    wanted = [*PASSES, "device_busy", "peak_memory"]
    cells = side_by_side(table, Attention, "median").reindex(columns=wanted).reset_index()
    cells["time"] = cells["forward"] + cells["backward"]
    cells["busy"] = cells["device_busy"] / cells["time"]
    keys = [name for name in cells.columns if name not in (*wanted, "time", "busy", "compiled")]
    halves = [
        select(cells, compiled=compiled)
        .set_index(keys)[["time", "busy", "peak_memory"]]
        .rename(columns={"time": name, "busy": f"{name}_busy", "peak_memory": f"{name}_peak"})
        for name, compiled in (("eager", False), ("compiled", True))
    ]
    pairs = halves[0].join(halves[1], how="inner").reset_index()
    pairs["gain"] = pairs["eager"] / pairs["compiled"]
    return pairs[pairs["gain"].notna()]


def extreme(pairs: DataFrame, which: str) -> dict[str, Any] | None:
    """The shape with the smallest or the largest gain."""
    if not len(pairs):
        return None
    row = pairs.loc[getattr(pairs["gain"], which)()]
    return {"gain": float(row["gain"]), "sequence": int(row["sequence"]), "d": int(row["d"])}


def pace(lost: DataFrame) -> dict[str, Any] | None:
    """For how much of the passes the device works where compiling loses, and how many of these cells the host paces.

    None where that was not measured.
    """
    known = lost.dropna(subset=["eager_busy", "compiled_busy"])
    if not len(known):
        return None
    return {
        "eager": (float(known["eager_busy"].min()), float(known["eager_busy"].max())),
        "compiled": (float(known["compiled_busy"].min()), float(known["compiled_busy"].max())),
        "host_bound": int((known["compiled_busy"] < HOST_BOUND).sum()),
        "cells": len(known),
    }


def flat(narrow: DataFrame, lost: DataFrame) -> dict[str, Any] | None:
    """How little the compiled time grows over the lengths at which compiling loses; None where it grows with the work.

    The work grows with the square of the length.
    """
    lengths = narrow[narrow["sequence"].isin(set(lost["sequence"]))].sort_values("sequence")
    if len(lengths) < 2:
        return None
    short, long = lengths.iloc[0], lengths.iloc[-1]
    growth = float(long["compiled"] / short["compiled"])
    work = int((long["sequence"] // short["sequence"]) ** 2)
    found = {"short": int(short["sequence"]), "long": int(long["sequence"]), "growth": growth, "work": work}
    return found if growth < WAITS < work else None


def peaks(pairs: DataFrame) -> dict[str, Any] | None:
    """The peaks of the largest shape, MiB and in matrices of scores."""
    known = pairs.dropna(subset=["eager_peak", "compiled_peak"])
    if not len(known):
        return None
    row = known.sort_values(["sequence", "d"]).iloc[-1]
    scores = FP32_BYTES * row["batch_size"] * row["sequence"] ** 2 / MIB
    return {
        "sequence": int(row["sequence"]),
        "d": int(row["d"]),
        "eager": float(row["eager_peak"]),
        "compiled": float(row["compiled_peak"]),
        "share": float(row["compiled_peak"] / row["eager_peak"]),
        "eager_scores": float(row["eager_peak"] / scores),
        "compiled_scores": float(row["compiled_peak"] / scores),
    }
