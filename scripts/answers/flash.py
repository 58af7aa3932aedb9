"""Answers to the FlashAttention problems: times, throughput and memory of every implementation."""

import itertools
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash import MATMUL
from scripts.data import ratio, reason, select, size_order, statistic
from scripts.typst import Table, significant

PHASES = ["forward", "backward", "forward_backward"]
NAMES = {
    "triton": "ours (Triton)",
    "triton_compiled_backward": "ours, backward in compiled PyTorch",
    "plain": "plain",
    "plain_compiled": "plain, compiled",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "SDPA cuDNN",
    "flex": "FlexAttention",
    "flash_attention_4": "FlashAttention-4",
}
COURSE_RECORD_MS = 5.364
"""Forward and backward at d 64 on one H100: the 2025 leaderboard's best entry."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables that the FlashAttention sections share."""
    table = tables["flash"]
    alone = select(table, compiled_call=False)
    measured = select(table, metric="forward_backward")
    if not len(measured):
        why = table[table["status"] != "ok"]["message"]
        return {"measured": False, "why": why.iloc[0] if len(why) else "not run"}
    return {
        "measured": True,
        "grids": {precision: grid_table(select(alone, precision=precision)) for precision in ("bf16", "fp32")},
        "leaderboard": leaderboard_table(select(table, compiled_call=True)),
        "rep": int(alone["rep"].min()),
        "record": COURSE_RECORD_MS,
        "board": {d: board_time(table, d, "triton") for d in (64, 128)},
        **rivalry(alone),
        "board_gain": ratio(*(board_time(table, 64, name) for name in ("sdpa_flash", "triton"))),
        **model_answers(tables["end_to_end"]),
        **short_answers(alone),
        "ablations": {
            precision: ablation_table(select(tables["flash_ablation"], precision=precision))
            for precision in ("bf16", "fp32")
        },
        "longest": longest(alone),
        **backward_ways(alone),
    }


def times(rows: DataFrame, phase: str, **cell: Any) -> float | None:
    """Median time of a phase, ms."""
    return statistic(rows, "median", metric=phase, **cell)


def grid_table(rows: DataFrame) -> Table | None:
    """Ours beside plain attention: every sequence length and head dimension."""
    rows = select(rows, heads=1)
    cells = sorted(set(zip(rows["sequence"], rows["d"], strict=True)))
    if not cells:
        return None
    body = []
    for sequence, d in cells:
        cell = select(rows, sequence=sequence, d=d)
        line = [str(sequence), str(d)]
        for name in ("triton", "plain"):
            own = select(cell, implementation=name)
            values = [times(own, phase) for phase in PHASES]
            line += [f"{value:.3f}" if value else reason(own) for value in values]
        both = [times(cell, "forward_backward", implementation=name) for name in ("plain", "triton")]
        gain = ratio(*both)
        line.append(f"{gain:.1f}×" if gain else "–")
        body.append(line)
    header = ["sequence", "d", *["forward", "backward", "both"] * 2, "plain / ours"]
    return Table(header, body, text_columns=0, groups=[("", 2), ("ours / ms", 3), ("plain / ms", 3), ("", 1)])


def board_time(table: DataFrame, d: int, name: str) -> float | None:
    """Forward and backward of the leaderboard's cell, ms."""
    return times(table, "forward_backward", compiled_call=True, d=d, implementation=name)


def leaderboard_table(rows: DataFrame) -> Table | None:
    """The leaderboards' cells: every implementation, both head dimensions."""
    if not len(rows):
        return None
    body = []
    for d in sorted(rows["d"].unique()):
        cell = select(rows, d=d)
        flash = times(cell, "forward_backward", implementation="sdpa_flash")
        for name, title in NAMES.items():
            own = select(cell, implementation=name)
            if not len(own):
                continue
            values = [times(own, phase) for phase in PHASES]
            line = [title, str(d)]
            if values[2] is None:
                body.append([*line, *[reason(own)] * 6])
                continue
            first = own.iloc[0]
            flops = flash_flops("forward_backward", 1, int(first["heads"]), int(first["sequence"]), int(d), causal=True)
            speed = ratio(flash, values[2])
            rate = flops / values[2]
            product = times(own, "matmul")
            share = ratio(rate, 2 * MATMUL**3 / product) if product else None
            body.append(
                [
                    *line,
                    *(f"{value:.2f}" for value in values),
                    f"{rate / 1e9:.0f}",
                    f"{100 * share:.0f}" if share else "–",
                    f"{speed:.2f}×" if speed else "–",
                ]
            )
    header = ["implementation", "d", "forward", "backward", "both", "TFLOP/s", "of a product / %", "against SDPA flash"]
    return Table(header, body, groups=[("", 2), ("ms", 3), ("both", 3)])


LONG = 1024
"""Sequences from here on are counted when implementations are compared."""


def rivalry(rows: DataFrame) -> dict[str, Any]:
    """Over the cells that ours and another both ran: where ours is faster end to end, and the extremes of the ratio.

    Once by events around a call, and once on the device alone: from a replayed graph where there is one, and by events
    above, where the host is ahead of the device.
    """
    keys = ["sequence", "d", "precision"]
    steps = select(rows[(rows["sequence"] >= LONG) & rows["metric"].isin(["forward_backward", "graph"])], heads=1)
    times = steps.pivot_table(index=[*keys, "implementation"], columns="metric", values="median")
    if not len(times):
        return {"against": None}
    times = times.reindex(columns=["forward_backward", "graph"])
    times["device"] = times["graph"].fillna(times["forward_backward"])
    body, device = [], []
    for (rival, title), precision in itertools.product(NAMES.items(), ("bf16", "fp32")):
        both = times.unstack("implementation").xs(precision, level="precision")
        if rival == "triton" or ("device", rival) not in both:
            continue
        line = [title, precision]
        for metric in ("forward_backward", "device"):
            gains = (both[metric][rival] / both[metric]["triton"]).dropna()
            if not len(gains):
                break
            line += [f"{(gains > 1).sum()} of {len(gains)}", f"{gains.min():.2f}×", f"{gains.max():.2f}×"]
        else:
            body.append(line)
            device.append(gains.min())
    groups = [("", 2), ("called one by one", 3), ("on the device", 3)]
    header = ["against", "precision", *["faster in", "least", "most"] * 2]
    return {
        "against": Table(header, body, text_columns=2, groups=groups) if body else None,
        "loses_on_device": any(gain < 1 for gain in device),
    }


def model_answers(table: DataFrame) -> dict[str, Any]:
    """The training step of each model size with plain attention, SDPA and ours, where the others were measured."""
    steps = select(table, metric="step", mode="train_step", compiled=False)
    ours = select(steps, attention="flash")
    body, gains = [], []
    for size in size_order(ours):
        first = select(ours, size=size).iloc[0]
        cell = {"size": size} | {name: first[name] for name in ("context", "precision", "warmup")}
        plain, sdpa, flash = (statistic(steps, "median", attention=name, **cell) for name in ("plain", "sdpa", "flash"))
        memory = [
            statistic(table, "mean", metric="peak_memory", mode="train_step", compiled=False, attention=name, **cell)
            for name in ("plain", "flash")
        ]
        if gain := ratio(plain, flash):
            gains.append((gain, first["label"], int(first["context"])))
        body.append(
            [
                *(first["label"], str(first["context"]), first["precision"]),
                *(f"{value:.1f}" if value else "–" for value in (plain, sdpa, flash)),
                *(f"{gain:.2f}×" if (gain := ratio(other, flash)) else "–" for other in (plain, sdpa)),
                *(f"{value / 1024:.1f}" if value else "–" for value in memory),
            ]
        )
    header = ["size", "context", "precision", "plain", "SDPA", "ours", "plain / ours", "SDPA / ours", "plain", "ours"]
    groups = [("", 3), ("training step / ms", 3), ("", 2), ("peak / GiB", 2)]
    return {
        "model": Table(header, body, text_columns=1, groups=groups) if body else None,
        "model_gain": max(gains, default=None),
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


DECISIONS = {
    "nothing": "as it is",
    "descriptors": "tiles loaded by pointers",
    "statistics": "L and D computed for every tile",
    "registers": "no limit on registers",
    "stage": "a pipeline stage less",
    "own": "half as many rows owned",
    "take": "half as many rows taken at a time",
    "bf16x6": "products of three TF32 products",
    "matrix_units": "products on the fp32 units",
}
"""What the table says of each decision taken back."""


def ablation_table(rows: DataFrame) -> Table | None:
    """What each decision is worth: the time without it, and that over the time with it."""
    dimensions = sorted(rows["d"].unique())
    if not len(select(rows, metric="forward", status="ok")):
        return None
    body = []
    for decision, title in DECISIONS.items():
        if not len(select(rows, without=decision)):
            continue
        line = [title]
        for d in dimensions:
            for phase in ("forward", "backward"):
                cell = {"d": d, "metric": phase}
                usual, changed = (statistic(rows, "median", without=name, **cell) for name in ("nothing", decision))
                line += [f"{changed:.2f}", f"{changed / usual:.2f}×"] if usual and changed else ["–", ""]
        body.append(line)
    groups = [("", 1), *((f"d = {d}, {phase} / ms", 2) for d in dimensions for phase in ("forward", "backward"))]
    return Table(["taken back", *["", ""] * 2 * len(dimensions)], body, groups=groups)


def longest(rows: DataFrame) -> dict[str, Any]:
    """Memory at the longest sequence, ours and plain, and how ours grows over the last doubling."""
    sequence = int(rows["sequence"].max())
    cell = {"metric": "peak_memory", "d": 64, "precision": "bf16", "heads": 1}
    ours = statistic(rows, "mean", sequence=sequence, implementation="triton", **cell)
    half = statistic(rows, "mean", sequence=sequence // 2, implementation="triton", **cell)
    plain = statistic(rows, "mean", sequence=sequence, implementation="plain", **cell)
    return {"sequence": sequence, "ours": ours, "plain": plain, "growth": ratio(ours, half)}


def backward_ways(rows: DataFrame) -> dict[str, Any]:
    """The backward pass as Triton kernels and as compiled PyTorch, under the same forward kernel."""
    ways = ["triton", "triton_compiled_backward"]
    steps = select(rows, metric="backward")
    slow = select(steps, implementation=ways[1])
    cells = sorted(set(zip(slow["precision"], slow["sequence"], slow["d"], strict=True)))
    body, gains = [], []
    for precision, sequence, d in cells:
        pair = [
            statistic(steps, "median", implementation=way, precision=precision, sequence=sequence, d=d, heads=1)
            for way in ways
        ]
        gain = ratio(pair[1], pair[0])
        if gain:
            gains.append(gain)
            body.append([precision, str(sequence), str(d), *(f"{value:.3f}" for value in pair), f"{gain:.1f}×"])
    header = ["precision", "sequence", "d", "Triton / ms", "compiled PyTorch / ms", "ratio"]
    return {
        "backward_ways": Table(header, body) if body else None,
        "backward_least": min(gains, default=None),
        "backward_most": max(gains, default=None),
    }
