"""Answers to `torch_compile`: attention and the whole Transformer, compiled and eager."""

import math
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.markup import Table, Tile, Typst, escape, fixed_point, measured, times
from scripts.views.compiled_attention import attention_answers
from scripts.views.data import one, ratio, reason, select, size_order
from scripts.views.steps import PASSES, steady, step_table


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["end_to_end"]
    return {
        **attention_answers(tables["attention"]),
        **model_answers(table),
        "together": together(steady(step_table(table))),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The most that compiling gains, and the least."""
    if not found["times"] or not found["best"]:
        return []
    (most, where), (least, elsewhere) = found["best"], found["worst"]
    extremes = escape(f"{where} (the smallest: {times(least)}, {elsewhere})")
    return [Tile(times(most), Typst(f"the largest gain from `torch.compile`: {extremes}"), "gain from compiling")]


def model_answers(table: DataFrame) -> dict[str, Any]:
    """(b) The whole model's training step, eager next to compiled, and when compiling has paid."""
    rows = select(table, attention="plain", mode="train_step", cold_start=False)
    tried = select(rows, compiled=True)
    if not len(tried):
        return {"times": None}
    context = int(tried["context"].max())
    rows = select(rows, context=context, warmup=int(tried["warmup"].max()))
    steps = step_table(rows)
    body, gains, costs, both = [], [], [], []
    for size in size_order(tried):
        for precision in ("fp32", "bf16"):
            cell = {"size": size, "precision": precision}
            if not len(select(tried, **cell)):
                continue
            line = [select(tried, size=size)["label"].iloc[0], precision]
            eager, compiled = (one(steps, compiled=compiled, **cell) for compiled in (False, True))
            if eager is None or compiled is None:
                why = reason(select(rows, compiled=eager is not None, **cell))
                body.append([*line, *[why] * (3 * len(PASSES) + 2)])
                continue
            both.append((", ".join(line), eager, compiled))
            cost = compile_seconds(compiled)
            pays = steps_to_pay(cost, eager["step"], compiled["step"])
            if cost is not None:
                costs.append((cost, ", ".join(line), pays))
            for title in PASSES:
                gain = ratio(eager[title], compiled[title])
                if gain is not None:
                    gains.append((gain, f"{line[0]}, {precision}, {title}"))
                line += [*(fixed_point(step[title]) for step in (eager, compiled)), fixed_point(gain, 2, "×")]
            line += [fixed_point(cost, 0), "–" if cost is None else "never" if pays is None else str(pays)]
            body.append(line)
    header = ["size", "precision", *["eager", "compiled", "ratio"] * len(PASSES), "cost / s", "pays after"]
    groups = [("", 2), *((f"{title} / ms", 3) for title in PASSES), ("compiling", 2)]
    paying = [(pays, name) for _, name, pays in costs if pays is not None]
    fewer = [few for _, eager, compiled in both if (few := ratio(eager["launches"], compiled["launches"]))]
    return {
        "context": context,
        "steps": int(steps["steps"].max()) if len(steps) else None,
        "times": Table(header, body, groups=groups, text_columns=2),
        "best": max(gains, default=None),
        "worst": min(gains, default=None),
        "slower": [name for gain, name in gains if gain < 1],
        "cost": max(((cost, name) for cost, name, _ in costs), default=None),
        "pays_first": min(paying, default=None),
        "pays_last": max(paying, default=None),
        "pays_never": [name for _, name, pays in costs if pays is None],
        "host_bound": [
            {"cell": name, "eager": eager["busy"], "compiled": compiled["busy"]}
            for name, eager, compiled in both
            if eager["host_bound"] and compiled["busy"] > 0
        ],
        "pace_known": any(eager["busy"] > 0 for _, eager, _ in both),
        "fewer_launches": (min(fewer), max(fewer)) if fewer else None,
    }


def compile_seconds(step: Series) -> float | None:
    """What compiling costs: the warm-up beyond the time that as many settled steps take, seconds."""
    warmup = step["warmup_seconds"]
    return max(0.0, warmup - step["warmup"] * step["step"] / 1e3) if measured(warmup) else None


def steps_to_pay(cost: float | None, eager: float, compiled: float) -> int | None:
    """After how many steps, of so many ms each, compiling has saved the seconds that it costs; None: never."""
    return math.ceil(1e3 * cost / (eager - compiled)) if cost is not None and compiled < eager else None


def together(steps: DataFrame) -> dict[str, Any] | None:
    """The training step where compiling and our attention were measured together, improved step by step from fp32."""
    trained = select(steps, mode="train_step")
    best = select(trained, compiled=True, attention="flash")
    if not len(best):
        return None
    cell = best.iloc[-1]
    rows = select(trained, size=cell["size"], context=cell["context"])
    stages = {
        "fp32": {"precision": "fp32", "compiled": False, "attention": "plain"},
        "bf16": {"precision": "bf16", "compiled": False, "attention": "plain"},
        "bf16, compiled": {"precision": "bf16", "compiled": True, "attention": "plain"},
        "bf16, our attention": {"precision": "bf16", "compiled": False, "attention": "flash"},
        "bf16, our attention, compiled": {"precision": "bf16", "compiled": True, "attention": "flash"},
    }
    found = {title: select(rows, **wanted).iloc[0] for title, wanted in stages.items() if len(select(rows, **wanted))}
    if len(found) < 2:
        return None
    first = next(iter(found.values()))
    last = next(reversed(found.values()))
    body = [
        [
            title,
            f"{row['step']:.1f}",
            fixed_point(100 * row["busy"], 0),
            fixed_point(row["peak_memory"] / 1024),
            f"{first['step'] / row['step']:.2f}×",
        ]
        for title, row in found.items()
    ]
    header = ["training step", "median / ms", "device busy / %", "peak / GiB", "gain"]
    return {
        "table": Table(header, body),
        "size": cell["label"],
        "context": int(cell["context"]),
        "steps": int(cell["steps"]),
        "gain": first["step"] / last["step"],
        "over": next(iter(found)),
        "fastest": min(found, key=lambda title: found[title]["step"]),
    }
