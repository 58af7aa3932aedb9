"""Answers to `fsdp`: training with sharded weights beside PyTorch's, and beside data parallelism."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.parallel.limits import AHEAD, REDUCTIONS
from scripts.rendering.markup import Tile, escape, times
from scripts.views.data import select, size_order
from scripts.views.fsdp import OURS, SHARDED, cells_of, contenders, setting_name, sharded, traced_cell, whole_weights
from scripts.views.sharded_steps import against_pytorch, contender_table, ours_beside, setting, summary_of
from scripts.views.wrappers import (
    Column,
    extremes,
    fixed,
    gib,
    marked_step,
    missing,
    share,
)

COLUMNS = [
    Column("median", "step / ms", marked_step, "median"),
    Column("p20–p80", "step / ms", lambda row: f"{fixed(row['p20'])}–{fixed(row['p80'])}", "p20"),
    Column("exposed", "step / ms", lambda row: fixed(row["exposed"]), "exposed"),
    Column("forward", "phases / ms", lambda row: fixed(row["forward"]), "forward"),
    # Synchronization is NaN where there is none apart from the pass.
    Column("backward", "phases / ms", lambda row: fixed(row[["backward", "synchronization"]].sum()), "backward"),
    Column("optimizer", "phases / ms", lambda row: fixed(row["optimizer"]), "optimizer"),
    Column("peak", "GiB", lambda row: gib(row["peak_memory"]), "peak_memory"),
    Column("outside", "GiB", lambda row: gib(row["outside_memory"]), "outside_memory"),
]
PROFILE = [
    Column("ms", "all-gathers", lambda row: fixed(row["gather"]), "gather"),
    Column("hidden / %", "all-gathers", share("gather_hidden"), "gather_hidden"),
    Column("ms", "reduce-scatters", lambda row: fixed(row["scatter"]), "scatter"),
    Column("hidden / %", "reduce-scatters", share("scatter_hidden"), "scatter_hidden"),
    Column("ms", "all communication", lambda row: fixed(row["communication"]), "communication"),
    Column("hidden / %", "all communication", share("hidden_share"), "hidden_share"),
    Column("busy / %", "device", share("busy_share"), "busy_share"),
    Column("hidden / %", "forward alone", share("forward_share"), "forward_share"),
]
STATES = 4
"""Weights, gradients, and two moments."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["fsdp"]
    rows = contenders(table)
    limits = {"ahead": AHEAD, "reductions": REDUCTIONS}
    if not len(rows):
        return {"steps": None, "missing": missing(table), **limits}
    compared, *larger = size_order(rows)
    shown = select(rows, size=compared)
    ours = rows[rows["wrapper"].isin(OURS)]
    profiled = shown[shown["timeline_length"].notna() & (shown["wrapper"] != FLOOR)]
    return {
        "steps": contender_table(select(table, size=compared), shown, COLUMNS),
        "profile": contender_table(table.iloc[:0], profiled, PROFILE),
        "label": shown["label"].iloc[0],
        "s": setting(table, rows),
        **limits,
        "pytorch": against_pytorch(rows),
        "whole": summary_of(ours_beside(shown, "peer_memory", "sharded_optimizer")),
        "hidden": extremes(ours, "forward_share"),
        "traces": traces(rows),
        "largest": largest(table, rows, larger[-1]) if larger else None,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """How much faster our fully sharded step is than PyTorch's, at worst."""
    if not found["steps"] or not found["s"]["gpu"] or not found["pytorch"]:
        return []
    least, most = (1 / ratio for ratio in reversed(found["pytorch"]["step"]))
    best = f" (at best {times(most)})" if times(most) != times(least) else ""
    return [Tile(times(least), escape(f"as fast as PyTorch's fully_shard, at worst{best}"), "gain over fully_shard")]


def traces(rows: DataFrame) -> dict[str, Any] | None:
    """What the drawn timelines show, in words."""
    cell = traced_cell(rows)
    shown = cell[cell["wrapper"].isin(SHARDED)]
    if not len(shown):
        return None
    return {
        "cell": shown["cell"].iloc[0],
        "shares": [
            {
                "title": row["title"],
                "gather": row["gather"],
                "gather_hidden": row["gather_hidden"],
                "scatter": row["scatter"],
                "scatter_hidden": row["scatter_hidden"],
            }
            for _, row in shown.iterrows()
        ],
    }


def largest(table: DataFrame, rows: DataFrame, size: str) -> dict[str, Any]:
    """Whether the largest model trains, on how many processes, and what of its state one of them holds."""
    shown = select(rows, size=size)
    first = shown.iloc[0]
    memory = float(first["gpu_memory"] or 0)
    return {
        "label": first["label"],
        "steps": contender_table(select(table, size=size), shown, COLUMNS),
        "state": STATES * whole_weights(first) / 1e9,
        "memory": memory / 1e9,
        "too_large": bool(memory) and STATES * whole_weights(first) > memory,
        "shards": [(f"{cell['processes'].iloc[0]}", sharded(cell.iloc[0]).state / 1e9) for cell in cells_of(shown)],
        "trained": [setting_name(cell.iloc[0]) for cell in cells_of(shown) if cell["wrapper"].isin(OURS).any()],
    }
