"""Answers to `flash_benchmarking`: every implementation's time, throughput and memory by sequence length."""

import itertools
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash import HOST_BOUND, MATMUL
from scripts.answers.helpers.flash_ablation import ablation_table
from scripts.answers.helpers.flash_model import model_answers
from scripts.data import ratio, reason, select, statistic
from scripts.implementations import NAMES, PASSES, availability, median_time
from scripts.markup import Table, Tile, Typst, fixed_point, milliseconds, significant, times

COURSE_RECORD_MS = 5.364
"""Forward and backward at d 64 on one H100: the 2025 leaderboard's best entry."""
LONG = 1024
"""Only sequences from this length up count when implementations are compared."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table, ablations = tables["flash"], tables["flash_ablation"]
    found = availability(table)
    if not found["measured"]:
        return found
    alone = select(table, compiled_call=False)
    return {
        **found,
        "grids": {precision: grid_table(select(alone, precision=precision)) for precision in ("bf16", "fp32")},
        "rep": min(table["rep"]),
        "longest": longest(alone),
        "long": LONG,
        "host_bound": HOST_BOUND,
        "matmul": MATMUL,
        "record": COURSE_RECORD_MS,
        "leaderboard": leaderboard_table(select(table, compiled_call=True)),
        "board": {d: board_time(table, d, "triton") for d in (64, 128)},
        "board_gain": ratio(*(board_time(table, 64, name) for name in ("sdpa_flash", "triton"))),
        "ablations": {
            precision: ablation_table(select(ablations, precision=precision)) for precision in ("bf16", "fp32")
        },
        "ablation_heads": max(ablations["heads"], default=None),
        **rivalry(alone),
        **short_answers(alone),
        **model_answers(tables["end_to_end"]),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The leaderboard's cell and the training step, where they were measured."""
    shown = []
    if found["measured"] and found["board_gain"]:
        cell = "causal attention, 16 heads of 16\u202f384 tokens at d = 64, forward and backward"
        against = Typst(f"{cell}: {times(found['board_gain'])} as fast as PyTorch's FlashAttention")
        shown.append(Tile(milliseconds(found["board"][64]), against, "leaderboard"))
    if found["measured"] and found["model_gain"]:
        gain, size, context = found["model_gain"]
        step = f"the training step of {size} at context {context}"
        meaning = f"{step} with our attention kernels instead of plain attention"
        shown.append(Tile(times(gain), meaning, f"gain from our attention, {size}, {context}"))
    return shown


def grid_table(rows: DataFrame) -> Table | None:
    """Ours (the kernels, or the PyTorch version where they cannot run) next to plain attention, at every shape."""
    rows = select(rows, heads=1)
    ours = "triton" if "triton" in set(select(rows, status="ok")["implementation"]) else "tiled"
    cells = sorted(set(zip(rows["sequence"], rows["d"], strict=True)))
    if not cells:
        return None
    body = []
    for sequence, d in cells:
        cell = select(rows, sequence=sequence, d=d)
        line = [str(sequence), str(d)]
        for name in (ours, "plain"):
            own = select(cell, implementation=name)
            values = [median_time(own, timed_pass) for timed_pass in PASSES]
            line += [f"{value:.3f}" if value else reason(own) for value in values]
        both = [median_time(cell, "forward_backward", implementation=name) for name in ("plain", ours)]
        gain = ratio(*both)
        line.append(f"{gain:.1f}×" if gain else "–")
        body.append(line)
    header = ["sequence", "d", *["forward", "backward", "both"] * 2, "plain / ours"]
    return Table(header, body, text_columns=0, groups=[("", 2), ("ours / ms", 3), ("plain / ms", 3), ("", 1)])


def leaderboard_table(rows: DataFrame) -> Table | None:
    """The leaderboards' cells: every implementation, both head dimensions."""
    if not len(rows):
        return None
    body = []
    for d in sorted(rows["d"].unique()):
        cell = select(rows, d=d)
        sdpa = median_time(cell, "forward_backward", implementation="sdpa_flash")
        for name, title in NAMES.items():
            own = select(cell, implementation=name)
            if not len(own):
                continue
            values = [median_time(own, timed_pass) for timed_pass in PASSES]
            line = [title, str(d)]
            if values[2] is None:
                body.append([*line, *[reason(own)] * 6])
                continue
            first = own.iloc[0]
            flops = flash_flops("forward_backward", 1, int(first["heads"]), int(first["sequence"]), int(d), causal=True)
            speed = ratio(sdpa, values[2])
            rate = flops / values[2]
            product = median_time(own, "matmul")
            share = ratio(rate, 2 * MATMUL**3 / product) if product else None
            body.append(
                [
                    *line,
                    *(fixed_point(value, 2) for value in values),
                    f"{rate / 1e9:.0f}",
                    f"{100 * share:.0f}" if share else "–",
                    f"{speed:.2f}×" if speed else "–",
                ]
            )
    header = ["implementation", "d", "forward", "backward", "both", "TFLOP/s", "of a matmul / %", "against SDPA flash"]
    return Table(header, body, groups=[("", 2), ("ms", 3), ("both", 3)])


def board_time(table: DataFrame, d: int, name: str) -> float | None:
    """Forward and backward of the leaderboard's cell, ms."""
    return median_time(table, "forward_backward", compiled_call=True, d=d, implementation=name)


def rivalry(rows: DataFrame) -> dict[str, Any]:
    """Over the cells that ours and another both ran: where ours is faster end to end, and the extremes of the ratio.

    Once by events around a call, and once on the device only: from a replayed graph where there is one, and by events
    for longer sequences, where the host is ahead of the device.
    """
    steps = select(rows[(rows["sequence"] >= LONG) & rows["metric"].isin(["forward_backward", "graph"])], heads=1)
    if "triton" not in set(steps["implementation"]):
        return {"against": None}
    keys = ["precision", "sequence", "d", "implementation"]
    medians = steps.pivot_table(index=keys, columns="metric", values="median").reindex(
        columns=["forward_backward", "graph"]
    )
    medians["device"] = medians["graph"].fillna(medians["forward_backward"])
    body, least = [], []
    for rival, precision in itertools.product(NAMES, sorted(set(steps["precision"]))):
        line = [NAMES[rival], precision]
        for metric in ("forward_backward", "device"):
            by_name = medians.loc[precision, metric].unstack("implementation")
            if rival == "triton" or rival not in by_name or "triton" not in by_name:
                break
            gains = (by_name[rival] / by_name["triton"]).dropna()
            if not len(gains):
                break
            line += [f"{(gains > 1).sum()} of {len(gains)}", f"{gains.min():.2f}×", f"{gains.max():.2f}×"]
        else:
            body.append(line)
            least.append(gains.min())
    groups = [("", 2), ("called one by one", 3), ("on the device", 3)]
    header = ["against", "precision", *["faster in", "smallest", "largest"] * 2]
    return {
        "against": Table(header, body, text_columns=2, groups=groups) if body else None,
        "loses_on_device": any(gain < 1 for gain in least),
    }


def short_answers(rows: DataFrame) -> dict[str, Any]:
    """Where the host sets the pace: device time from a replayed graph, and what a call costs the host."""
    rows = rows[rows["metric"].isin(["graph", "host"])]
    rows = select(rows, precision="bf16")
    cells = [
        cell
        for cell in sorted(set(zip(rows["sequence"], rows["d"], strict=True)))
        if len(select(rows, sequence=cell[0], d=cell[1], implementation="sdpa_flash"))
    ]
    names = [name for name in ("triton", "sdpa_flash", "plain") if name in set(rows["implementation"])]
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
    titles = [NAMES[name] for name in names]
    groups = [("", 2), ("device / µs", len(names)), ("host / µs", len(names))]

    def against_sdpa(metric: str) -> list[float]:
        pairs = [(medians[metric, cell, "sdpa_flash"], medians[metric, cell, "triton"]) for cell in cells]
        return [theirs / ours for theirs, ours in pairs if ours and theirs]

    device, host = against_sdpa("graph"), against_sdpa("host")
    return {
        "short": Table(["sequence", "d", *titles * 2], body, text_columns=0, groups=groups),
        "short_device_least": min(device, default=None),
        "short_device_most": max(device, default=None),
        "short_host": 1 / min(host) if host else None,
    }


def longest(rows: DataFrame) -> dict[str, Any]:
    """Memory at the longest sequence, ours and plain, and how ours grows over the last doubling."""
    sequence = max(rows["sequence"], default=0)
    cell = {"metric": "peak_memory", "d": 64, "precision": "bf16", "heads": 1}
    ours = statistic(rows, "mean", sequence=sequence, implementation="triton", **cell)
    half = statistic(rows, "mean", sequence=sequence // 2, implementation="triton", **cell)
    plain = statistic(rows, "mean", sequence=sequence, implementation="plain", **cell)
    return {"sequence": sequence, "ours": ours, "plain": plain, "growth": ratio(ours, half)}
