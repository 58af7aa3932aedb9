"""Answers to `fsdp`: training with sharded weights beside PyTorch's, and beside data parallelism."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.parallel.limits import AHEAD, REDUCTIONS
from scripts.rendering.markup import Tile, escape
from scripts.rendering.markup import times as ratio
from scripts.views.comparison import cells_of, contenders, device_bound, ranks_of, setting_name, traced_cell
from scripts.views.comparison_tables import (
    EXPOSED,
    OUTSIDE,
    STEP,
    Column,
    contender_table,
    covered,
    extremes,
    fixed,
    memory,
    missing,
    setting,
    shares,
    times,
)
from scripts.views.data import select, size_order
from scripts.views.fsdp import OURS, PYTORCH, sharded, whole_weights
from scripts.views.progress import progress, yours

COLUMNS = [
    *STEP,
    EXPOSED,
    times("forward", "phases / ms", "forward"),
    # Synchronization is NaN where there is none apart from the pass.
    Column(
        "backward", "phases / ms", lambda row: fixed(row[["backward", "synchronization"]].sum(min_count=1)), "backward"
    ),
    times("optimizer", "phases / ms", "optimizer"),
    memory("peak", "peak_memory"),
    OUTSIDE,
]
PROFILE = [
    times("ms", "all-gathers", "gather"),
    shares("hidden / %", "all-gathers", "gather_hidden"),
    times("ms", "reduce-scatters", "scatter"),
    shares("hidden / %", "reduce-scatters", "scatter_hidden"),
    times("ms", "all communication", "communication"),
    shares("hidden / %", "all communication", "hidden_share"),
    shares("busy / %", "device", "busy_share"),
    shares("hidden / %", "forward alone", "forward_share"),
]
OF_COLLECTIVES = {"gather": "gather_hidden", "scatter": "scatter_hidden"}
WHOLE = ["peer_memory", "sharded_optimizer"]
"""Those with whole weights."""
BEST = "our FSDP at its best"
STATES = 4
"""Weights, gradients, and two moments."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    limits = {"ahead": AHEAD, "reductions": REDUCTIONS}
    if not len(rows):
        return {"steps": None, "missing": missing(table), **limits}
    compared, *larger = size_order(rows)
    shown = select(rows, size=compared)
    told = device_bound(rows)
    ours = told[told["contender"].isin(OURS)]
    drawn = traced_cell(rows)
    sharding = drawn[~drawn["contender"].isin([FLOOR, *WHOLE])]
    profiled = shown[shown["timeline_length"].notna() & (shown["contender"] != FLOOR)]
    return {
        "steps": contender_table(FullyShardedTraining, select(table, size=compared), shown, COLUMNS),
        "profile": contender_table(FullyShardedTraining, table.iloc[:0], profiled, PROFILE),
        "label": shown["label"].iloc[0],
        "s": setting(FullyShardedTraining, table, rows),
        **limits,
        "pytorch": progress(FullyShardedTraining, rows, [PYTORCH], OURS, ("fully_shard", BEST)),
        "whole": progress(FullyShardedTraining, shown, WHOLE, OURS, ("the faster with whole weights", BEST)),
        "yours": yours(FullyShardedTraining, rows, OURS),
        "hidden": extremes(ours, "forward_share"),
        "traces": covered(sharding, OF_COLLECTIVES),
        "largest": largest(table, rows, larger[-1]) if larger else None,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """How much faster our fully sharded step is than PyTorch's, at worst."""
    if not found["steps"] or not found["s"]["gpu"] or not found["pytorch"] or not found["pytorch"]["cells"]:
        return []
    least, most = (ratio(found["pytorch"][end][0]) for end in ("least", "most"))
    best = f" (at best {most})" if most != least else ""
    return [Tile(least, escape(f"as fast as PyTorch's fully_shard, at worst{best}"), "gain over fully_shard")]


def largest(table: DataFrame, rows: DataFrame, size: str) -> dict[str, Any]:
    """Whether the largest model trains, on how many processes, and what of its state one of them holds."""
    shown = select(rows, size=size)
    first = shown.iloc[0]
    trained = [cell.iloc[0] for cell in cells_of(shown) if cell["contender"].isin(OURS).any()]
    memory = float(first["gpu_memory"] or 0)
    return {
        "label": first["label"],
        "steps": contender_table(FullyShardedTraining, select(table, size=size), shown, COLUMNS),
        "state": STATES * whole_weights(first) / 1e9,
        "memory": memory / 1e9,
        "too_large": bool(memory) and STATES * whole_weights(first) > memory,
        "shards": [(f"{cell['processes'].iloc[0]}", sharded(cell.iloc[0]).state / 1e9) for cell in cells_of(shown)],
        "trained": [f"{ranks_of(cell)}, {setting_name(cell)}" for cell in trained],
    }
