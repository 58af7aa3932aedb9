"""Answers to `memory_profiling`: the memory of a step over time, its peak, and the tensors that make it up."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure import memory_timeline as of
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.sizes import parse_size
from scripts.answers.memory_profiling.block import block_answers
from scripts.rendering.markup import Table, fixed, fixed_point
from scripts.views.cells import cells as cells_of
from scripts.views.closed_forms import held_by_training
from scripts.views.data import PRECISIONS, ratio, reason, select, statistic
from scripts.views.memory import FOLLOWED, LOOKS, compared_context, contexts, parts, peak_gib, profiled
from scripts.views.units import GIB

FORMULAS = {
    of.PARAMETERS: "4 bytes per weight",
    of.GRADIENTS: "4 bytes per weight",
    of.OPTIMIZER_STATE: "8 bytes per weight, 4 per tensor",
    of.WEIGHT_COPIES: "2 bytes per weight of a linear layer",
}
"""The closed forms of what a training step holds, in words."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = profiled(tables["memory_profile"])
    block = block_answers(tables)
    if not len(table):
        return {"derived": None, "block": block}
    plain = select(table, attention="plain")
    found = {
        "block": block,
        "label": table["label"].iloc[0],
        "batch": int(table["batch_size"].iloc[0]),
        "derived": derived_table(table),
        "d_model": parse_size(table["size"].iloc[0]).d_model,
        "residual": [(context, residual_mib(table.iloc[0], context)) for context in contexts(table)],
        "context": compared_context(plain),
        "why_not": next(iter(select(table, metric=WHOLE_CELL, status="skipped")["message"]), ""),
    }
    if found["context"] is None:
        return found
    fp32, bf16 = (select(plain, precision=precision) for precision in PRECISIONS)
    cells = {mode: select(fp32, mode=mode, context=found["context"]) for mode in FOLLOWED}
    peaks = [
        (row["mean"], statistic(rows, "mean", metric="peak_replayed"))
        for row, rows in cells_of(table, MemoryProfile, "peak_allocated")
    ]
    return {
        **found,
        "cells": len(peaks),
        "exact": all(allocated == replayed for allocated, replayed in peaks),
        **stage_answers(cells),
        **peak_answers(fp32, table, found["context"]),
        **precision_answers(fp32, bf16, found["context"]),
        "found": residual_found(cells["forward"]),
        "found_bf16": residual_found(select(bf16, mode="forward", context=found["context"])),
        **largest_answers(cells["forward"]),
    }


def derived_table(table: DataFrame) -> Table:
    """Closed forms of what outlives a step and of the copies that autocast makes, next to what was found."""
    most = select(table, metric="most").groupby("category")["mean"].max() / MIB
    body = [
        [category, FORMULAS[category], f"{size / MIB:.1f}", f"{most[category]:.1f}" if category in most else "–"]
        for category, size in held_by_training(table.iloc[0]).items()
    ]
    header = ["memory", "closed form", "derived / MiB", "found / MiB"]
    if not len(most):
        header, body = header[:-1], [line[:-1] for line in body]
    return Table(header, body, text_columns=2)


def residual_mib(cell: Series, context: int) -> float:
    """Size of one tensor of the residual stream, MiB."""
    return residual_bytes(parse_size(cell["size"]), int(cell["batch_size"]), context) / MIB


def stage_answers(cells: Mapping[str, DataFrame]) -> dict[str, Any]:
    """(a) The stages of the training step, and the stage of each kind of step's peak."""
    rows = cells["train_step"]
    events = {row["stage"]: int(row["mean"]) for _, row in select(rows, metric="stage_events").iterrows()}
    ends = {stage: select(rows, metric="stage_end", stage=stage) for stage in events}
    total = {stage: end["mean"].sum() / GIB for stage, end in ends.items() if len(end)}
    held = {
        category: {stage: (statistic(ends[stage], "mean", category=category) or 0) / GIB for stage in total}
        for category in (of.ACTIVATIONS, of.GRADIENTS)
    }
    saved, left, gradients = (
        held[category].get(stage)
        for category, stage in ((of.ACTIVATIONS, of.LOSS), (of.ACTIVATIONS, of.BACKWARD), (of.GRADIENTS, of.BACKWARD))
    )
    body = [
        [
            stage,
            str(count),
            *(
                fixed_point(size, 2)
                for size in (
                    ratio(statistic(rows, "mean", metric="stage_peak", stage=stage), GIB),
                    *(sizes.get(stage) for sizes in (total, held[of.ACTIVATIONS], held[of.GRADIENTS])),
                )
            ),
        ]
        for stage, count in events.items()
    ]
    header = ["stage", "allocations and frees", "highest / GiB", "in all", of.ACTIVATIONS, of.GRADIENTS]
    return {
        "stages": Table(header, body, groups=[("", 3), ("at the stage's end / GiB", 3)]),
        "seen": saved is not None and gradients is not None,
        "saved": saved,
        "left": left,
        "gradients": gradients,
        "backward_grows": total.get(of.BACKWARD, 0) > total.get(of.LOSS, 0),
        "optimizer_events": events.get(of.OPTIMIZER),
        "peak_stages": {mode: peak_stage(cell) for mode, cell in cells.items()},
    }


def peak_stage(cell: DataFrame) -> str:
    """The stage in which a cell's memory is highest."""
    return str(select(cell, metric="peak_stage")["value"].iloc[0])


def peak_answers(fp32: DataFrame, table: DataFrame, context: int) -> dict[str, Any]:
    """(b) Peaks by context and kind of step, and what no_grad and FlashAttention save."""
    lengths = contexts(fp32)
    columns = [peak_column(fp32, mode, lengths) for mode in FOLLOWED]
    body = [[str(length), *line] for length, line in zip(lengths, zip(*columns, strict=True), strict=True)]
    plain = {mode: peak_gib(fp32, mode=mode, context=context) for mode in FOLLOWED}
    flash = select(table, attention="flash", metric="peak_allocated")
    lost = select(fp32, metric=WHOLE_CELL, status="oom")
    return {
        "peaks": Table(["context", *(f"{title} / GiB" for title in FOLLOWED.values())], body, text_columns=0),
        "graph_factor": ratio(plain["forward"], plain["inference"]),
        "graph_saved": parts(select(fp32, mode="forward", context=context))[of.ACTIVATIONS],
        "out_of_memory": [
            f"{FOLLOWED[mode]} at context {context}"
            for mode, context in zip(lost["mode"], lost["context"], strict=True)
        ],
        "flash": [
            {
                "context": int(row["context"]),
                "precision": row["precision"],
                "mode": FOLLOWED[row["mode"]],
                "gib": gib,
            }
            for _, row in flash.iterrows()
            for gib in [row["mean"] / GIB]
        ],
    }


def peak_column(rows: DataFrame, mode: str, lengths: list[int]) -> list[str]:
    """The peak at each context in GiB, or why there is none."""
    cells = [select(rows, mode=mode, context=length) for length in lengths]
    texts = fixed([peak_gib(cell) for cell in cells])
    return [text or reason(cell) for text, cell in zip(texts, cells, strict=True)]


def precision_answers(fp32: DataFrame, bf16: DataFrame, context: int) -> dict[str, Any]:
    """(c) The same under autocast, and the difference by category at the compared context."""
    lengths = contexts(bf16)
    body = [[str(length)] for length in lengths]
    saved: list[str] = []
    costs: list[str] = []
    for mode, title in FOLLOWED.items():
        for line, length, text in zip(body, lengths, peak_column(bf16, mode, lengths), strict=True):
            before, after = (peak_gib(rows, mode=mode, context=length) for rows in (fp32, bf16))
            if before is None or after is None:
                line += [text, text if after is None else "–"]
                continue
            line += [text, f"{after - before:+.2f}".replace("-", "−")]
            (saved if after < before else costs).append(f"{title} at {length}")
    header = ["context", *["bf16", "− fp32"] * len(FOLLOWED)]
    groups = [("", 1), *((f"{title} / GiB", 2) for title in FOLLOWED.values())]
    cells = {
        (mode, precision): parts(select(rows, mode=mode, context=context))
        for mode in FOLLOWED
        for precision, rows in zip(PRECISIONS, (fp32, bf16), strict=True)
    }
    by_category = [[name, *(f"{sizes[name]:.2f}" for sizes in cells.values())] for name in LOOKS]
    return {
        "bf16_peaks": Table(header, body, groups=groups, text_columns=0),
        "by_category": Table(["memory at the peak", *["fp32", "bf16"] * len(FOLLOWED)], by_category, groups=groups),
        "bf16_saves": saved,
        "bf16_costs": costs,
        "bf16_peak_stage": peak_stage(select(bf16, mode="train_step", context=context)),
        "copies": {mode: cells[mode, "bf16"][of.WEIGHT_COPIES] for mode in FOLLOWED},
        "activation_ratio": ratio(cells["forward", "bf16"][of.ACTIVATIONS], cells["forward", "fp32"][of.ACTIVATIONS]),
    }


def residual_found(cell: DataFrame) -> dict[str, Any] | None:
    """(d) The allocations of a forward pass that have the size of the residual stream, by operator."""
    rows = select(cell, metric="residual_tensors")
    if not len(rows):
        return None
    counts = rows.groupby("operator")["mean"].sum().sort_values(ascending=False, kind="stable")
    added = select(rows, operator="add")
    return {
        "total": int(rows["mean"].sum()),
        "by_operator": [f"{int(count)} by {operator}" for operator, count in counts.items()],
        "added": int(added["mean"].sum()),
        "lines": [source.partition(" ")[0] for source in added["source"]],
    }


def largest_answers(cell: DataFrame) -> dict[str, Any]:
    """(e) The largest allocations of the forward pass, the first one in words, and how much of them is kept."""
    rows = select(cell, metric="allocation")
    if not len(rows):
        return {"largest": None}
    layers = parse_size(cell["size"].iloc[0]).num_layers
    body = []
    for _, row in rows.iterrows():
        lifetime = statistic(cell, "median", metric="lifetime", rank=row["rank"])
        per_block, rest = divmod(int(row["n"]), layers)
        body.append(
            [
                row["operator"],
                row["source"].partition(" ")[0].removeprefix("cs336_systems/"),
                row["code"],
                row["category"],
                f"{row['mean'] / MIB:.1f}",
                f"{per_block} × {layers}" + (f" + {rest}" if rest else "") if per_block else str(rest),
                "kept" if lifetime is None else f"{lifetime:.2f}",
            ]
        )
    kept = select(rows, category=of.ACTIVATIONS)
    first = rows.iloc[0]
    header = ["operator", "line", "its text", "memory", "MiB each", "number", "lives / ms"]
    return {
        "largest": Table(header, body, text_columns=4),
        "first": {
            "mib": first["mean"] / MIB,
            "operator": first["operator"],
            "line": first["source"].partition(" ")[0],
            "code": first["code"],
        },
        "groups": len(rows),
        "kept_groups": len(kept),
        "kept_gib": float((kept["n"] * kept["mean"]).sum()) / GIB,
    }
