"""Answers of `nsys_profile` on single kinds of kernels: the longest, those other than matmuls, and the softmax."""

import itertools
from collections.abc import Mapping
from typing import cast

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Typst, percent, significant
from scripts.views.data import PRECISIONS, measured_gpu, ratio, select, size_order
from scripts.views.kernels import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    TOGETHER,
    attention_times,
    calls_explained,
    kernels,
    label_of,
    readable,
    shares,
    top,
)
from scripts.views.roofline import block_kernels

INFERENCE = "inference"


OTHERS_SHOWN = 6
"""Kernels other than matmuls that are listed for each precision."""


ASKED = {
    "forward": "(a) Forward time",
    "longest": "(b) Longest kernel",
    "others": "(c) Other kernels",
    "training": "(d) Training against inference",
    "softmax": "(e) Softmax against matmuls",
}


def longest(here: DataFrame, close: DataFrame, unit: str) -> Answer:
    """Sub-question (b): the kernel that takes most time in the forward pass, and with the backward pass."""
    body, callers, same = [], [], []
    matmuls: dict[str, list[bool]] = {}
    for size, precision in itertools.product(size_order(here), PRECISIONS):
        cell = {"size": size, "precision": precision}
        forward = top(kernels(here, FORWARD, mode=INFERENCE, **cell))
        both = top(kernels(here, FORWARD_AND_BACKWARD, mode="train_step", **cell))
        if forward:
            line = [label_of(here, size), precision, *forward.texts]
            body.append([*line, *(both.texts if both else ["–"] * 3)])
            source = calls_explained(forward.launches, parse_size(size).num_layers)
            callers.append([*line[:3], source, f"{forward.products:.0f}"])
            matmuls.setdefault(precision, []).append(forward.category == "matmul")
            same += [forward.kernel == both.kernel] if both else []
    by_precision = [
        say("{hits} of {all} in {name}", hits=sum(hits), all=count(len(hits), "size"), name=name)
        for name, hits in matmuls.items()
    ]
    quoted = quoted_kernel(close)
    return Answer(
        asked=ASKED["longest"].replace("kernel", unit),
        verdict=say("A matmul takes most time in the forward pass at {hits:listing}.", hits=by_precision),
        more=paragraph(
            quoted,
            say(
                "With the backward pass it is the same one in {same} of {cells}.",
                same=sum(same),
                cells=count(len(same), "cell") if same else None,
            ),
        ),
        evidence=[
            Captioned(
                Table(
                    ["size", "precision", *[unit, "calls", "share"] * 2],
                    body,
                    text_columns=3,
                    groups=[("", 2), ("forward (inference)", 3), ("forward + backward (training)", 3)],
                ),
                f"The {unit} with most time: its calls in a step and its share of all {unit}s' time. Of matmuls, kind, "
                "layout of the operands and tile.",
            )
        ],
        reason=paragraph(
            Typst(
                "The model fixes the number of matmuls: nine per block (four projections, two in attention, three in "
                "SwiGLU) and the head, two more for each in the backward pass."
            ),
            tell(
                unit == "kernel",
                Typst(
                    "cuBLAS picks among several kernels by shape, so matmuls divide among them, whereas one kernel "
                    "casts or multiplies for every module: it may lead although all matmuls together take longer."
                ),
                NOTHING,
            ),
        ),
        details=[
            Captioned(
                Table(["size", "precision", unit, "called by", "matmuls in the pass"], callers, text_columns=4),
                f"Where the calls of the forward pass's longest {unit} come from: layers × modules + modules outside.",
                long=True,
            )
        ],
    )


def quoted_kernel(close: DataFrame) -> Typst:
    """The longest kernel of the size that is quoted, in the last precision that was profiled."""
    for precision in reversed(PRECISIONS):
        found = top(kernels(close, FORWARD, mode=INFERENCE, precision=precision))
        if found:
            return say(
                "{label}, {precision}: {kernel}, {calls} calls, {share:percent} of the time.",
                label=close["label"].iloc[0],
                precision=precision,
                kernel=readable(found.kernel),
                calls=round(found.calls),
                share=found.share,
            )
    return NOTHING


def others(close: DataFrame, gpu: str, unit: str) -> Answer:
    """Sub-question (c): what else matters in the forward pass, and what limits it."""
    forward = {
        name: rows for name in PRECISIONS if len(rows := kernels(close, FORWARD, precision=name, mode=INFERENCE))
    }
    if not forward:
        return Answer(ASKED["others"].replace("kernel", unit), NOTHING)
    parts = {name: Series(shares(rows)).sort_values(ascending=False) for name, rows in forward.items()}
    last = list(parts)[-1]
    lost = [say("{share:percent} in {name}", share=1 - share["matmul"], name=name) for name, share in parts.items()]
    largest = [
        say("{name} {share:percent}", name=name, share=share) for name, share in parts[last].drop("matmul").items()
    ]
    title = f"The {unit}s other than matmuls with most time in the forward pass of inference."
    listed = Captioned(others_table(forward, unit), title, long=True)
    roof = gpu_of(gpu) is not None
    return Answer(
        asked=ASKED["others"].replace("kernel", unit),
        verdict=say(
            "{unit}s other than matmuls take {lost:listing} of the forward pass of {label}.",
            unit=unit.capitalize(),
            lost=lost,
            label=close["label"].iloc[0],
        ),
        more=say("In {precision}: {largest:listing}.", precision=last, largest=largest[:4]),
        evidence=["roofline"] if roof else [listed],
        reason=limits(close) if roof else Typst("No roofline is drawn: this machine's peak rates are not listed."),
        details=[listed] if roof else [],
    )


def limits(close: DataFrame) -> Typst:
    """What limits the kernels of a block, by the roofline."""
    gpu = gpu_of(measured_gpu({"": close}))
    sentences = []
    for precision in PRECISIONS:
        found = block_kernels(select(close, precision=precision))
        ridge = gpu.flops(precision) / gpu.bandwidth if gpu else 0.0
        slow = [each for each in found if each.work.intensity < ridge]
        fast = [each for each in found if each.work.intensity >= ridge]
        moved = [each.bandwidth / gpu.bandwidth for each in slow if gpu]
        rates = [each.flops / gpu.flops(precision) for each in fast if gpu]
        sentences.append(
            say(
                "In {precision} (@fig-roofline) memory limits whatever does fewer than {ridge:sig} FLOPs per byte: "
                "{slow:listing} move their bytes at {moved:span percent} of the peak bandwidth. Compute limits the "
                "rest: {fast:listing} reach {rates:span percent} of the peak rate.",
                precision=precision,
                ridge=ridge,
                slow=[each.kind for each in slow],
                moved=[min(moved, default=None), max(moved, default=None)],
                fast=[each.kind for each in fast],
                rates=[min(rates, default=None), max(rates, default=None)],
            )
        )
    return paragraph(*sentences)


def others_table(forward: Mapping[str, DataFrame], unit: str) -> Table:
    """Kernels other than matmuls by time, in each precision."""
    body = []
    for precision, rows in forward.items():
        rest = rows[(rows["category"] != "matmul") & ~rows["kernel"].str.startswith(TOGETHER)]
        grouped = rest.groupby(["kernel", "category"])["ms"].sum().sort_values(ascending=False)
        for key, ms in grouped.head(OTHERS_SHOWN).items():
            kernel, category = cast(tuple[str, str], key)
            chosen = select(rest, kernel=kernel, category=category)
            ranges = chosen.groupby("range")["ms"].sum().sort_values(ascending=False).index
            where = f"{ranges[0]} and {len(ranges) - 1} more" if len(ranges) > 1 else ranges[0]
            numbers = [f"{chosen['calls'].sum():.0f}", str(significant(ms)), str(percent(ms / rows["ms"].sum()))]
            body.append([precision, readable(kernel), category, where, *numbers])
    return Table(["precision", unit, "category", "most of it in", "calls", "ms", "share"], body, text_columns=4)


def softmax(here: DataFrame, close: DataFrame) -> Answer:
    """Sub-question (e): softmax against the two matmuls inside attention, in time and in FLOPs."""
    found = attention_times(here)
    quoted = select(found, label=close["label"].iloc[0]).set_index("precision")
    last = quoted.iloc[-1] if len(quoted) else None
    longer = select(found, precision="bf16")["time"] > 1
    body = [
        [
            *(row["label"], row["precision"]),
            *(str(significant(row[name])) for name in ("softmax", "inside", "matmuls")),
            *(f"{row['time']:.2f}", f"{row['flops']:.3f}", f"{row['time'] / row['flops']:.0f}×"),
        ]
        for _, row in found.iterrows()
    ]
    header = ["size", "precision", "softmax", "with mask and casts", "matmuls", "in time", "in FLOPs", "per FLOP"]
    groups = [("", 2), ("ms", 3), ("softmax over matmuls", 3)]
    return Answer(
        asked=ASKED["softmax"],
        verdict=NOTHING
        if last is None
        else say(
            "The softmax takes {time:times} the time of attention's matmuls for {flops:percent} of the FLOPs ({cell}).",
            time=last["time"],
            flops=last["flops"],
            cell=f"{last['label']}, {last.name}",
        ),
        more=paragraph(
            say("In fp32 it is {time:times}.", time=quoted["time"].get("fp32") if len(quoted) > 1 else None),
            say(
                "In bf16 it takes longer than both matmuls together at {longer} of {sizes}.",
                longer=int(longer.sum()),
                sizes=count(len(longer), "size") if len(longer) else None,
            ),
        ),
        evidence=[Captioned(Table(header, body, text_columns=2, groups=groups), SOFTMAX_CAPTION)],
        reason=softmax_reason(close),
        missing="Not measured: attention's ranges were not profiled.",
    )


SOFTMAX_CAPTION = (
    "Attention in the forward pass of inference: the softmax alone, everything in its range, and the two matmuls. "
    "FLOPs: 5 per score against 4 d for heads of width d."
)


def softmax_reason(close: DataFrame) -> Typst:
    """Why the softmax takes so long, by the roofline."""
    gpu = gpu_of(measured_gpu({"": close}))
    found = {(name, each.kind): each for name in PRECISIONS for each in block_kernels(select(close, precision=name))}
    low, full = (found.get((name, "attention matmuls")) for name in ("bf16", "fp32"))
    alone = found.get(("bf16", "softmax"))
    if gpu is None or low is None or full is None or alone is None:
        return Typst("It reads and writes every score for five operations, so memory likely sets its pace.")
    return paragraph(
        say(
            "The softmax reads and writes every score in fp32 for five operations, at {rate:percent} of the memory's "
            "bandwidth: memory limits it, so the precision changes nothing.",
            rate=alone.bandwidth / gpu.bandwidth,
        ),
        say(
            "The matmuls reach {full:percent} of the peak rate in fp32. In bf16 they are {gain:times} as fast, and "
            "limited by memory, too ({moved:percent} of the bandwidth): with heads this narrow they do only "
            "{intensity:sig} FLOPs per byte of scores.",
            full=full.flops / gpu.fp32,
            gain=ratio(full.seconds, low.seconds),
            moved=low.bandwidth / gpu.bandwidth,
            intensity=low.work.intensity,
        ),
    )
