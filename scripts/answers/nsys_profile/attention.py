"""Time inside attention, and what compiling and FlashAttention remove from a step, in the kernel profile."""

from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import forward_flops, softmax_flops
from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, significant
from scripts.views.data import PRECISIONS, select, size_order
from scripts.views.kernels import FORWARD, MODES_PROFILED, kernels, label_of, name_of, total

VARIANTS = {(False, "plain"): "eager", (True, "plain"): "compiled", (False, "flash"): "flash"}
"""What readers call a model, by whether it is compiled and by its attention."""
EXPLAINED = {"eager": "eager", "compiled": "compiled", "flash": "eager with this project's FlashAttention (flash)"}
KERNELS, STEP, LAUNCHES = "all kernels", "whole step", "launches (number)"


def attention_answers(here: DataFrame) -> dict[str, Any]:
    """(e) Softmax against the two products inside attention, in time and in operations."""
    body, per_flop = [], []
    for size in size_order(here):
        shape = parse_size(size)
        for precision in PRECISIONS:
            forward = kernels(here, FORWARD, size=size, precision=precision, mode="inference")
            products = forward[forward["range"].isin(["scores", "final product"]) & (forward["category"] == "matmul")]
            softmax, whole = select(forward, range="softmax", category="softmax"), select(forward, range="softmax")
            if not len(products) or not len(softmax):
                continue
            batch, context = int(forward["batch_size"].iloc[0]), int(forward["context"].iloc[0])
            d_head = shape.d_model // shape.num_heads
            flops = softmax_flops(batch, shape.num_heads, context) / forward_flops(
                batch, shape.num_heads, context, d_head, causal=False
            )
            in_time = softmax["ms"].sum() / products["ms"].sum()
            label = forward["label"].iloc[0]
            milliseconds = [str(significant(rows["ms"].sum())) for rows in (softmax, whole, products)]
            quotients = [f"{in_time:.2f}", f"{flops:.3f}", f"{in_time / flops:.1f}×"]
            body.append([label, precision, *milliseconds, *quotients])
            per_flop.append((in_time / flops, in_time, name_of(label, precision)))
    header = [
        "size",
        "precision",
        "softmax",
        "with mask and casts",
        "products",
        "time",
        "operations",
        "time per operation",
    ]
    groups = [("", 2), ("ms", 3), ("softmax / products", 3)]
    return {
        "attention": Table(header, body, groups=groups, text_columns=2) if body else None,
        "least_per_flop": min(per_flop, default=None),
        "most_per_flop": max(per_flop, default=None),
    }


def removal_answers(table: DataFrame) -> dict[str, Any]:
    """The time of each category with a compiled model and with FlashAttention, beside the eager model's."""
    launched = kernels(table)
    varied = launched[launched["compiled"] | (launched["attention"] != "plain")]
    if not len(varied):
        return {"removal": None}
    size, precision = varied[["size", "precision"]].iloc[0]
    columns: list[dict[str, float]] = []
    header, groups, removed = [], [], []
    for context in sorted(varied["context"].unique()):
        for mode, title in MODES_PROFILED.items():
            cell = select(table, size=size, precision=precision, context=context, mode=mode)
            found = {
                name: spent
                for (compiled, attention), name in VARIANTS.items()
                if (spent := spending(select(cell, compiled=compiled, attention=attention)))
            }
            columns += found.values()
            header += list(found)
            groups.append((f"{title}, context {context}", len(found)))
            if "eager" in found:
                where = f"{title}, context {context}"
                changes = [
                    change(name, where, found["eager"], spent) for name, spent in found.items() if name != "eager"
                ]
                removed += changes
    if not columns:
        return {"removal": None}
    names = [name for name in columns[0] if any(column[name] for column in columns)]
    body = [[name, *(shown(column[name], name) for column in columns)] for name in names]
    largest = {
        name: max((one for one in removed if one["variant"] == name), key=lambda one: one["step"][0] - one["step"][1])
        for name in dict.fromkeys(one["variant"] for one in removed)
    }
    return {
        "removal": Table(["ms per step", *header], body, groups=[("", 1), *groups]),
        "removal_size": label_of(table, size),
        "removal_precision": precision,
        "removal_variants": [EXPLAINED[name] for name in VARIANTS.values() if name in header],
        "removed": list(largest.values()),
    }


def shown(value: float, name: str) -> str:
    """A time of a column in ms, or a number of launches; a dash for none."""
    if not value:
        return "–"
    return f"{value:.0f}" if name == LAUNCHES else f"{value:.1f}" if value >= 0.05 else "< 0.1"


def spending(rows: DataFrame) -> dict[str, float]:
    """Milliseconds per step of each category in a cell, of all kernels and of the step without the profiler.

    Also the number of launches; empty where the cell was not profiled, or one of its stages has no time.
    """
    launched = kernels(rows)
    step = total(rows, "stage", list(launched["stage"].unique()))
    if not step:
        return {}
    by_category = launched.groupby("category")["ms"].sum()
    return {name: float(by_category.get(name, 0.0)) for name in CATEGORIES} | {
        KERNELS: float(launched["ms"].sum()),
        STEP: step,
        LAUNCHES: float(launched["calls"].sum()),
    }


def change(name: str, where: str, eager: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    """What a variant changes, and the category that falls most."""
    most = max(CATEGORIES, key=lambda category: eager[category] - other[category])
    return {
        "variant": name,
        "where": where,
        "kernels": (eager[KERNELS], other[KERNELS]),
        "step": (eager[STEP], other[STEP]),
        "launches": (round(eager[LAUNCHES]), round(other[LAUNCHES])),
        "category": most,
        "fall": (eager[most], other[most]),
    }
