"""The leaderboard's cell, for `flash_benchmarking`: by this report's protocol and by the handout's."""

from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash import HANDOUT_REP, HANDOUT_WARMUP, MATMUL
from scripts.rendering.markup import Table, fixed_point
from scripts.views.attention_calls import (
    OURS,
    PASSES,
    median_time,
    our_attention_kernels,
    titles,
    with_kernels_for_hopper,
    without_own,
)
from scripts.views.data import one, ratio, reason, select, statistic
from scripts.views.spread import legend, marked

MEANWHILE = ("handout_sm_clock", "handout_power")
"""What was sampled during the handout's repetition: MHz and W."""


def leaderboard_answers(table: DataFrame, ablations: DataFrame) -> dict[str, Any]:
    """The table of all implementations, the fastest measured library, and what else the section says of the cell."""
    rows = select(table, compiled_call=True)
    shown = leaderboard_table(rows)
    fastest = {int(d): fastest_library(select(rows, d=d)) for d in sorted(rows["d"].unique())}
    handout = statistic(rows, "mean", metric="handout", implementation=OURS, d=64)
    watched = select(rows, metric="handout_power")
    return {
        "leaderboard": shown,
        "leaderboard_marks": legend(shown),
        "board": {d: board_time(table, d, OURS) for d in (64, 128)},
        "board_rep": int(rows["rep"].min()) if len(rows) else None,
        "board_fastest": {d: library for d, library in fastest.items() if library and library["gain"]},
        "board_handout": handout,
        "board_kernels": {
            int(d): names for d in sorted(rows["d"].unique()) if (names := our_attention_kernels(select(rows, d=d)))
        },
        "board_power": (float(watched["median"].min()), float(watched["median"].max())) if len(watched) else None,
        "handout_seconds": (HANDOUT_WARMUP / 1e3, HANDOUT_REP / 1e3),
        "board_ablation": against_ablation(rows, ablations),
    }


def leaderboard_table(rows: DataFrame) -> Table | None:
    """The leaderboards' cells: every implementation, both head dimensions."""
    if not len(rows):
        return None
    by_handout = len(select(rows, metric="handout")) > 0
    width = 6 + (1 + len(MEANWHILE) if by_handout else 0)
    body = []
    for d in sorted(rows["d"].unique()):
        cell = select(rows, d=d)
        fastest = fastest_library(cell)
        for name, title in titles(cell).items():
            own = select(cell, implementation=name)
            line = [title, str(d)]
            median = median_time(own, "forward_backward")
            if median is None:
                body.append([*line, *[reason(own)] * width])
                continue
            batch, heads, sequence = (int(own.iloc[0][column]) for column in ("batch_size", "heads", "sequence"))
            rate = flash_flops("forward_backward", batch, heads, sequence, int(d), causal=True) / median
            product = median_time(own, "matmul")
            share = ratio(rate, 2 * MATMUL**3 / product) if product else None
            line += [marked(one(own, metric=timed_pass), 2) or "–" for timed_pass in PASSES]
            line += [
                f"{rate / 1e9:.0f}",
                fixed_point(share and 100 * share, 0),
                fixed_point(ratio(fastest["median"] if fastest else None, median), 2, "×"),
            ]
            if by_handout:
                line.append(fixed_point(statistic(own, "mean", metric="handout"), 2))
                line += [fixed_point(statistic(own, "median", metric=metric), 0) for metric in MEANWHILE]
            body.append(line)
    header = ["implementation", "d", "forward", "backward", "both", "TFLOP/s", "matmul / %", "library"]
    groups = [("", 2), ("medians / ms", 3), ("both", 3)]
    if by_handout:
        header, groups = [*header, "mean / ms", "MHz", "W"], [*groups, ("handout's protocol", 3)]
    return Table(header, body, groups=groups)


def fastest_library(cell: DataFrame) -> dict[str, Any] | None:
    """Of one head dimension the library with the least time: its name, ms, and that over ours."""
    rows = without_own(select(cell, metric="forward_backward"))
    others = rows[rows["implementation"] != OURS]
    if not len(others):
        return None
    best = others.sort_values("median").iloc[0]
    ours = statistic(rows, "median", implementation=OURS)
    return {
        "name": titles(rows)[best["implementation"]],
        "median": float(best["median"]),
        "gain": ratio(float(best["median"]), ours),
    }


def board_time(table: DataFrame, d: int, name: str) -> float | None:
    """Forward and backward of the leaderboard's cell, ms."""
    return median_time(table, "forward_backward", compiled_call=True, d=d, implementation=name)


def against_ablation(rows: DataFrame, ablations: DataFrame) -> dict[str, Any] | None:
    """Our backward pass at d 64, ms: on the leaderboard, and in the ablation with random gradients and with a sum's."""
    cells = select(rows, metric="backward", implementation=OURS, d=64)
    if not len(cells):
        return None
    shape = {name: cells.iloc[0][name] for name in ("sequence", "heads", "precision", "d")}
    usual = select(ablations, without="nothing", **shape)
    here = float(cells.iloc[0]["median"])
    there, of_sum = (statistic(usual, "median", metric=metric) for metric in ("backward", "backward_of_sum"))
    if there is None:
        return None
    return {
        "here": here,
        "there": there,
        "for_hopper": bool(select(with_kernels_for_hopper(rows), implementation=OURS, d=64)["for_hopper"].any()),
        "ratio": there / here,
        "of_sum": of_sum,
        "of_sum_ratio": ratio(of_sum, here),
        "data": ratio(there, of_sum),
    }
