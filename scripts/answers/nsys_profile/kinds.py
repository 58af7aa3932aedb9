"""Answers of `nsys_profile` on single kinds of kernels: the longest, those other than matmuls, and the softmax."""

import itertools
from collections.abc import Mapping
from typing import cast

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import Answer, Captioned, Facts, count, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table, Typst, percent
from scripts.views.data import PRECISIONS, last, measured_gpu, one, select, size_order
from scripts.views.kernels import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    TOGETHER,
    attention_times,
    kernels,
    label_of,
    readable,
    shares,
    top,
)
from scripts.views.roofline import block_kernels, fused_cell

INFERENCE = "inference"
COPIED = 0.9
"""Share of the data sheet's bandwidth that no copy exceeds: a faster kernel reads part of its bytes from the L2
cache."""
OTHERS_SHOWN = 6
"""Kernels other than matmuls that are listed for each precision."""
PASSES = {"forward (inference)": "forward", "forward + backward (training)": "both"}
SOFTMAX: Columns = {
    "": {"size": "{label}", "precision": "{precision}"},
    "ms": {"softmax": "{softmax:sig}", "with mask and casts": "{inside:sig}", "matmuls": "{matmuls:sig}"},
    "softmax over matmuls": {
        "in time": "{time:.2f}",
        "in FLOPs": "{flops:.3f}",
        "per FLOP": "{ratio:.0f}×",
    },
}
ASKED = {
    "forward": "(a) Forward time",
    "longest": "(b) Longest kernel",
    "others": "(c) Other kernels",
    "training": "(d) Training against inference",
    "softmax": "(e) Softmax against matmuls",
}


def longest(here: DataFrame, close: DataFrame, unit: str) -> Answer:
    """Sub-question (b): the kernel with the longest total time in the forward pass, and with the backward pass."""
    lines = []
    for size, precision in itertools.product(size_order(here), PRECISIONS):
        cell = {"size": size, "precision": precision}
        forward = top(kernels(here, FORWARD, mode=INFERENCE, **cell))
        both = top(kernels(here, FORWARD_AND_BACKWARD, mode="train_step", **cell))
        if forward:
            line = {"label": label_of(here, size), "precision": precision, "matmul": forward.category == "matmul"}
            line |= {f"forward {name}": text for name, text in forward.texts.items()}
            line |= {f"both {name}": "–" for name in forward.texts}
            line |= {f"both {name}": text for name, text in both.texts.items()} if both else {}
            line["same"] = forward.kernel == both.kernel if both else None
            lines.append(line)
    rows = DataFrame(lines)
    same = [line["same"] for line in lines if line["same"] is not None]
    columns = {
        group: {title: f"{{{name} {key}}}" for title, key in ((unit, "kernel"), ("calls", "calls"), ("share", "share"))}
        for group, name in PASSES.items()
    }
    facts = Facts(
        hits=[
            say("{hits} of {all} in {name}", hits=int(own["matmul"].sum()), all=count(len(own), "size"), name=name)
            for name, own in (rows.groupby("precision", sort=False) if lines else ())
        ],
        same=sum(same) or "none",
        cells=count(len(same), "cell") if same else None,
    )
    return Answer(
        asked=ASKED["longest"].replace("kernel", unit),
        verdict=facts.say("A matmul takes the most time in the forward pass at {hits:listing}."),
        more=facts.say(quoted_kernel(close), "Including the backward pass, it is the same one in {same} of {cells}."),
        details=Captioned(
            grid(rows, {"": {"size": "{label}", "precision": "{precision}"}} | columns, text_columns=3),
            f"The {unit} that takes the most time: its calls in a step and its share of all {unit}s' time."
            + (" For matmuls: kind, operand layout and tile." if unit == "kernel" else ""),
        ),
    )


def quoted_kernel(close: DataFrame) -> Typst:
    """The longest kernel of the quoted size, in the last profiled precision."""
    found = [(name, top(kernels(close, FORWARD, mode=INFERENCE, precision=name))) for name in reversed(PRECISIONS)]
    name, kernel = next((pair for pair in found if pair[1]), ("", None))
    facts = Facts(label=close["label"].iloc[0], name=name, kernel=kernel)
    return facts.say(
        "{label}, {name}: {kernel.texts[kernel]}, {kernel.calls:whole} calls, {kernel.share:percent} of the time."
    )


def others(close: DataFrame, table: DataFrame, gpu: str, unit: str) -> Answer:
    """Sub-question (c): the other relevant kernels of the forward pass, and their limits."""
    forward = {
        name: rows for name in PRECISIONS if len(rows := kernels(close, FORWARD, precision=name, mode=INFERENCE))
    }
    asked = ASKED["others"].replace("kernel", unit)
    if not forward:
        return Answer(asked)
    parts = {name: Series(shares(rows)).sort_values(ascending=False) for name, rows in forward.items()}
    name = list(parts)[-1]
    largest = [say("{of} {share:percent}", of=of, share=share) for of, share in parts[name].drop("matmul").items()]
    context = close["context"].iloc[0]
    title = (
        f"The {unit}s other than matmuls that take the most time in the forward pass of inference, context {context}."
    )
    listed = Captioned(others_table(forward, unit), title, long=True)
    roof = gpu_of(gpu) is not None
    facts = Facts(
        unit=unit.capitalize(),
        lost=[say("{share:percent} in {name}", share=1 - part["matmul"], name=name) for name, part in parts.items()],
        label=close["label"].iloc[0],
        name=name,
        largest=largest[:4],
    )
    return Answer(
        asked=asked,
        verdict=facts.say("{unit}s other than matmuls take {lost:listing} of the forward pass of {label}."),
        more=facts.say("In {name}: {largest:listing}."),
        evidence="roofline" if roof else listed,
        reason=limits(close, table) if roof else "No roofline is drawn: this machine's peak rates are not listed.",
        details=listed if roof else (),
    )


def limits(close: DataFrame, table: DataFrame) -> Typst:
    """The limits of a block's kernels, and of our attention, by the roofline."""
    gpu = gpu_of(measured_gpu({"": close}))
    sentences = []
    for precision in PRECISIONS:
        found = block_kernels(select(close, precision=precision))
        ridge = gpu.flops(precision) / gpu.bandwidth if gpu else 0.0
        slow = [each for each in found if each.work.intensity < ridge]
        fast = [each for each in found if each.work.intensity >= ridge]
        moved = [each.bandwidth / gpu.bandwidth for each in slow if gpu]
        ours = next(iter(block_kernels(fused_cell(select(table, precision=precision)))), None)
        rates = [each.flops / gpu.flops(precision) for each in fast if gpu]
        sentences.append(
            say(
                "In {precision} (@fig-roofline), memory bandwidth is the roof for operations with fewer than "
                "{ridge:sig} FLOPs per byte: {slow:listing} move their bytes at {moved:span percent} of it"
                + (", partly from L2." if max(moved, default=0.0) > COPIED else "."),
                "The peak rate is the roof for the rest: {fast:listing} reach {rates:span percent} of it.",
                "FlashAttention (the largest model and context profiled with it) reaches {ours:percent}, not counting "
                "exponentials.",
                precision=precision,
                ours=ours.flops / gpu.flops(precision) if ours and gpu else None,
                ridge=ridge,
                slow=[each.kind for each in slow],
                moved=[min(moved, default=None), max(moved, default=None)],
                fast=[each.kind for each in fast],
                rates=[min(rates, default=None), max(rates, default=None)],
            )
        )
    return say(*sentences)


def others_table(forward: Mapping[str, DataFrame], unit: str) -> Table:
    """Kernels other than matmuls by time, in each precision."""
    lines = []
    for precision, rows in forward.items():
        rest = rows[(rows["category"] != "matmul") & ~rows["kernel"].str.startswith(TOGETHER)]
        grouped = rest.groupby(["kernel", "category"])["ms"].sum().sort_values(ascending=False)
        for key, ms in grouped.head(OTHERS_SHOWN).items():
            kernel, category = cast(tuple[str, str], key)
            chosen = select(rest, kernel=kernel, category=category)
            ranges = chosen.groupby("range")["ms"].sum().sort_values(ascending=False).index
            where = f"{ranges[0]} and {len(ranges) - 1} more" if len(ranges) > 1 else ranges[0]
            line = {"precision": precision, "kernel": readable(kernel), "category": category, "where": where}
            line |= {"calls": chosen["calls"].sum(), "ms": ms, "share": str(percent(ms / rows["ms"].sum()))}
            lines.append(line)
    columns = {"precision": "{precision}", unit: "{kernel}", "category": "{category}", "most of it in": "{where}"}
    columns |= {"calls": "{calls:.0f}", "ms": "{ms:sig}", "share": "{share}"}
    return grid(DataFrame(lines), columns, text_columns=4)


def softmax(here: DataFrame, close: DataFrame) -> Answer:
    """Sub-question (e): softmax against the two matmuls inside attention, in time and in FLOPs."""
    found = attention_times(here)
    quoted = select(found, label=close["label"].iloc[0])
    longer = select(found, precision="bf16")["time"] > 1
    return Answer(
        asked=ASKED["softmax"],
        verdict=say(
            "The softmax takes {row[time]:times} the time of attention's matmuls for {row[flops]:percent} of the FLOPs "
            "({row[label]}, {row[precision]}).",
            row=last(quoted),
        ),
        more=say(
            "In fp32 it is {row[time]:times}.",
            "In bf16 it takes longer than both matmuls together at {longer} of {sizes}.",
            longer=int(longer.sum()) or None,
            sizes=count(len(longer), "size") if len(longer) else None,
            row=one(quoted, precision="fp32") if len(quoted) > 1 else None,
        ),
        evidence=Captioned(
            grid(found.assign(ratio=found["time"] / found["flops"]), SOFTMAX, text_columns=2),
            f"Attention in the forward pass of inference, context {here['context'].iloc[0]}: the softmax alone, "
            "everything in its range, and the two matmuls. FLOPs: 5 per score for the softmax, 4 d for the matmuls, "
            "with heads of width d.",
        ),
        reason=softmax_reason(close),
        missing="Not measured: attention's ranges were not profiled.",
    )


def softmax_reason(close: DataFrame) -> Typst:
    """Why the softmax takes so long, by the roofline."""
    gpu = gpu_of(measured_gpu({"": close}))
    found = {(name, each.kind): each for name in PRECISIONS for each in block_kernels(select(close, precision=name))}
    low, full = (found.get((name, "attention matmuls")) for name in ("bf16", "fp32"))
    alone = found.get(("bf16", "softmax"))
    if gpu is None or low is None or full is None or alone is None:
        return say("It reads and writes every score for only five operations, so it is likely memory-bound.")
    facts = Facts(full=full, low=low, alone=alone, gpu=gpu)
    return facts.say(
        "The softmax reads and writes every score in fp32 for only five operations, at "
        "{alone.bandwidth / gpu.bandwidth:percent} of the memory bandwidth: it is memory-bound, so the precision "
        "makes no difference.",
        "The matmuls reach {full.flops / gpu.fp32:percent} of the peak rate in fp32. In bf16 they are "
        "{full.seconds / low.seconds:times} as fast and also memory-bound ({low.bandwidth / gpu.bandwidth:percent} "
        "of the bandwidth): with heads this narrow they do only {low.work.intensity:sig} FLOPs per byte.",
    )
