"""Time inside attention, and what compiling and FlashAttention remove from a step, in the kernel profile."""

from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import forward_flops, softmax_flops
from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.sizes import parse_size
from scripts.data import select, size_order
from scripts.kernels import FORWARD, MODES_PROFILED, PRECISIONS, kernels, label_of, name_of, total
from scripts.markup import Table, significant

VARIANTS = {(False, "plain"): "eager", (True, "plain"): "compiled", (False, "flash"): "FlashAttention"}
"""What readers call a model, by whether it is compiled and by its attention."""
REMOVABLE = [name for name in CATEGORIES if name not in ("communication", "other")]


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
    varied = table[(table["compiled"] | (table["attention"] != "plain")) & (table["metric"] == "kernel")]
    if not len(varied):
        return {"removal": None}
    size = varied["size"].iloc[0]
    body, removed = [], []
    for precision, context in sorted(set(zip(varied["precision"], varied["context"], strict=True))):
        for mode, title in MODES_PROFILED.items():
            eager: dict[Any, Any] = {}
            for (compiled, attention), variant in VARIANTS.items():
                rows = select(table, size=size, precision=precision, context=context, mode=mode)
                rows = select(rows, compiled=compiled, attention=attention)
                launched = kernels(rows)
                if not len(launched):
                    continue
                spent = launched.groupby("category")["ms"].sum().to_dict()
                summed: dict[Any, Any] = {
                    "launches": int(launched["calls"].sum()),
                    "kernels": launched["ms"].sum(),
                    "step": total(rows, "stage", list(select(rows, metric="stage")["stage"])),
                }
                numbers = [str(significant(spent[name])) if name in spent else "–" for name in REMOVABLE]
                numbers += [
                    str(summed["launches"]),
                    *(str(significant(summed[name])) for name in ("kernels", "step")),
                ]
                body.append([precision, str(context), title, variant, *numbers])
                if variant == "eager":
                    eager = spent | summed
                elif eager:
                    falls = {name: eager.get(name, 0.0) - spent.get(name, 0.0) for name in REMOVABLE}
                    most = max(falls, key=lambda name: falls[name])
                    removed.append(
                        {
                            "variant": variant,
                            "where": f"{title}, context {context}",
                            "kernels": (eager["kernels"], summed["kernels"]),
                            "step": (eager["step"], summed["step"]),
                            "launches": (eager["launches"], summed["launches"]),
                            "category": most,
                            "fall": (eager.get(most, 0.0), spent.get(most, 0.0)),
                        }
                    )
    header = ["precision", "context", "step", "model", *REMOVABLE, "launches", "kernels", "whole step"]
    return {
        "removal": Table(header, body, text_columns=4),
        "removal_size": label_of(table, size),
        "removed": removed,
    }
