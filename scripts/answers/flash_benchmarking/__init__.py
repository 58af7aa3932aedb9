"""Answers to `flash_benchmarking`: every implementation's time, throughput and memory by sequence length."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import HOST_BOUND, MATMUL
from scripts.answers.flash_benchmarking.calls import disturbed, short_answers
from scripts.answers.flash_benchmarking.grid import grid_table, tiled_table
from scripts.answers.flash_benchmarking.in_the_model import model_answers
from scripts.answers.flash_benchmarking.leaderboard import leaderboard_answers
from scripts.answers.flash_benchmarking.own import own_answers
from scripts.rendering.markup import LONGEST_TABLE, Tile, Typst, milliseconds, times
from scripts.views.attention_calls import availability, kind_of_call
from scripts.views.data import ratio, select, statistic
from scripts.views.flash_ablation import ablation_table, fp32_units
from scripts.views.flash_rivals import LONG, ONE_HEAD, rivalry, training_answers
from scripts.views.spread import legend

COURSE_RECORD_MS = 5.364
"""Forward and backward at d 64 on one H100: the 2025 leaderboard's best entry."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table, ablations = tables["flash"], tables["flash_ablation"]
    found = availability(table)
    if not found["measured"]:
        return found
    alone = select(table, **ONE_HEAD)
    grids = {precision: grid_table(select(alone, precision=precision)) for precision in ("bf16", "fp32")}
    tiled = tiled_table(alone)
    training = training_answers(table)
    own = own_answers(table)
    return {
        **found,
        "grids": {precision: grid for precision, grid in grids.items() if grid},
        "longest_table": LONGEST_TABLE,
        "long_tables": any(grid and len(grid.rows) > LONGEST_TABLE for grid in grids.values())
        or bool(training["training"])
        or own["own_is_long"],
        "marks": legend(*grids.values(), tiled),
        "tiled": tiled,
        "rep": min(table["rep"]),
        "longest": longest(alone),
        "long": LONG,
        "host_bound": HOST_BOUND,
        "matmul": MATMUL,
        "record": COURSE_RECORD_MS,
        "ablations": {
            precision: ablation_table(select(ablations, precision=precision)) for precision in ("bf16", "fp32")
        },
        "ablation_marks": {
            precision: legend(ablation_table(select(ablations, precision=precision))) for precision in ("bf16", "fp32")
        },
        "ablation_heads": max(ablations["heads"], default=None),
        "fp32_units": fp32_units(ablations),
        "disturbed": disturbed(table),
        "flash_attn": library_versions(table),
        **leaderboard_answers(table, ablations),
        **rivalry(table),
        **training,
        **own,
        **short_answers(alone),
        **model_answers(tables["end_to_end"]),
    }


def library_versions(table: DataFrame) -> list[str]:
    """The versions of FlashAttention-4, each with the cells that it was measured in; empty if all have one."""
    rows = select(table, implementation="flash_attention_4", metric="forward_backward")
    kinds = kind_of_call(rows).groupby(rows["flash_attn"]).unique()
    return [f"{version} ({', '.join(sorted(kind))})" for version, kind in kinds.items()] if len(kinds) > 1 else []


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The leaderboard's cell and the training step, where they were measured."""
    shown = []
    if found["measured"] and found["board"][64] and 64 in found["board_fastest"]:
        fastest = found["board_fastest"][64]
        cell = "causal attention, 16 heads of 16\u202f384 tokens at d = 64, forward and backward"
        against = Typst(f"{cell}: {times(fastest['gain'])} as fast as {fastest['name']}, the fastest library measured")
        shown.append(Tile(milliseconds(found["board"][64]), against, "leaderboard"))
    if found["measured"] and found["model_gain"]:
        gain, size, context = found["model_gain"]
        step = f"the training step of {size} at context {context}"
        meaning = f"{step} with our attention kernels instead of plain attention"
        shown.append(Tile(times(gain), meaning, f"gain from our attention, {size}, {context}"))
    return shown


def longest(rows: DataFrame) -> dict[str, Any]:
    """Memory at the longest sequence, ours and plain, and how ours grows over the last doubling."""
    sequence = max(rows["sequence"], default=0)
    cell = {"metric": "peak_memory", "d": 64, "precision": "bf16"}
    ours = statistic(rows, "mean", sequence=sequence, implementation="triton", **cell)
    half = statistic(rows, "mean", sequence=sequence // 2, implementation="triton", **cell)
    plain = statistic(rows, "mean", sequence=sequence, implementation="plain", **cell)
    return {"sequence": sequence, "ours": ours, "plain": plain, "growth": ratio(ours, half)}
