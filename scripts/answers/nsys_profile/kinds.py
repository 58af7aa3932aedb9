"""Answers of `nsys_profile` on single kinds of kernels: the longest, those other than matmuls, and the softmax."""

import re

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import forward_flops, softmax_flops
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import Answer, Captioned, count, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table, Typst
from scripts.views.data import PRECISIONS, last, one, select, small_to_large
from scripts.views.kernels import CELL, FORWARD, FORWARD_AND_BACKWARD, kernels, shares
from scripts.views.roofline import block_kernels

INFERENCE = "inference"
TOGETHER = "others ("
"""Prefix of the name of a row for several small kernels."""
OTHERS_SHOWN = 6
"""Kernels other than matmuls that are listed for each precision."""
PASSES = {"forward (inference)": "forward", "forward + backward (training)": "both"}
SOFTMAX: Columns = {
    "": {"size": "{label}", "precision": "{precision}"},
    "ms": {"softmax": "{softmax:sig}", "with mask and casts": "{inside:sig}", "matmuls": "{matmuls:sig}"},
    "softmax over matmuls": {"in time": "{time:sig}", "in FLOPs": "{flops:.3f}", "per FLOP": "{ratio:sig}×"},
}
ASKED = {
    "forward": "(a) Forward time",
    "longest": "(b) Top kernel by time",
    "others": "(c) Other kernels",
    "training": "(d) Training vs. inference",
    "softmax": "(e) Softmax vs. matmuls",
}
LONG_NAMES = {
    r"sm\d+_xmma_gemm_\w*_([nt]{2})_n_tilesize(\d+x\d+).*": r"xmma_gemm \1 \2",
    r"cutlass_\d+_\w+_(\w*gemm)_(\d+x\d+)_\w+_([nt]{2})_align\d+": r"cutlass \1 \3 \2",
    r"nvjet_sm\d+_\w+?_(\d+x\d+)_\w+_([NT]{3})": r"nvjet \2 \1",
    r"((?:\w+_)?elementwise)_kernel: (\w+?)(?:_kernel)?(?:_cuda)?": r"\1: \2",
}
"""The displayed part of long names, by their pattern: for matmuls, the layout of the operands and the tile of the
result."""


def readable(kernel: str) -> str:
    """A kernel's name, shortened for a table; it may not be unique.

    >>> readable("vectorized_elementwise_kernel: bfloat16_copy_kernel_cuda")
    'vectorized_elementwise: bfloat16_copy'
    """
    for pattern, shown in LONG_NAMES.items():
        if match := re.fullmatch(pattern, kernel):
            return match.expand(shown)
    return kernel


def leaders(rows: DataFrame) -> DataFrame:
    """The kernel with the most time in each cell: its `shown` name, `category`, `calls`, and `share` of the time."""
    named = rows[~rows["kernel"].str.startswith(TOGETHER).astype(bool)]
    sums = named.groupby([*CELL, "kernel"], as_index=False).agg({"category": "first", "calls": "sum", "ms": "sum"})
    longest = sums.sort_values("ms", ascending=False, kind="stable").drop_duplicates(CELL)
    share = longest.set_index(CELL)["ms"] / rows.groupby(CELL)["ms"].sum()
    return longest.assign(shown=longest["kernel"].map(readable)).join(share.rename("share"), on=CELL)


def longest(here: DataFrame, close: DataFrame, unit: str) -> Answer:
    """Sub-question (b): the kernel with the longest total time in the forward pass, and with the backward pass."""
    forward = leaders(kernels(here, FORWARD, mode=INFERENCE))
    both = leaders(kernels(here, FORWARD_AND_BACKWARD, mode="train_step"))
    lines = small_to_large(forward.merge(both, how="left", on=CELL, suffixes=(" forward", " both")))
    trained = lines[lines["kernel both"].notna()]
    single = len(set(lines["size"])) == 1
    same = int((trained["kernel forward"] == trained["kernel both"]).sum())
    hits = (lines["category forward"] == "matmul").groupby(lines["precision"], sort=False).agg(["sum", "size"])
    columns = {
        group: {unit: f"{{shown {name}}}", "calls": f"{{calls {name}:.0f}}", "share / %": f"{{share {name}:share}}"}
        for group, name in PASSES.items()
    }
    return Answer(
        asked=ASKED["longest"].replace("kernel", unit),
        verdict=say(
            f"At context {here['context'].iloc[0]} the top forward {unit} is a matmul "
            + ("in {names:listing} ({label})." if single and hits["sum"].all() else "for {hits:listing} sizes."),
            hits=[
                say("{hits} of {all} ({name})", hits=int(row["sum"]), all=int(row["size"]), name=name)
                for name, row in hits.iterrows()
            ],
            names=list(hits.index),
            label=close["label"].iloc[0],
        ),
        more=say(
            "For {row[label]} ({row[precision]}) it is {row[shown forward]}: {row[calls forward]:whole} calls, "
            f"{{row[share forward]:percent}} of {unit} time.",
            f"With backward, the top {unit} is unchanged in "
            + ("every cell." if same == len(trained) else "{same} of {cells}."),
            row=last(select(lines, size=close["size"].iloc[0])),
            same=same,
            cells=count(len(trained), "cell") if len(trained) else None,
        ),
        details=Captioned(
            grid(lines, {"": {"size": "{label}", "precision": "{precision}"}} | columns, text_columns=3),
            f"The {unit} with the longest total time in a step, its calls, and its share of {unit} time; context "
            f"{here['context'].iloc[0]}."
            + (" Names of matmuls give the kind, operand layout and tile." if unit == "kernel" else ""),
        ),
    )


def others(close: DataFrame, unit: str) -> Answer:
    """Sub-question (c): the other relevant kernels of the forward pass, and their limits."""
    forward, asked = kernels(close, FORWARD, mode=INFERENCE), ASKED["others"].replace("kernel", unit)
    if not len(forward):
        return Answer(asked)
    parts = {name: Series(part) for name in PRECISIONS if (part := shares(select(forward, precision=name)))}
    name = list(parts)[-1]
    largest = parts[name].drop("matmul").nlargest(4)
    listed = Captioned(
        others_table(forward, unit),
        f"The {unit}s other than matmuls that take the most time in the inference forward pass, context "
        f"{close['context'].iloc[0]}. A module's {unit}s below 0.1 % of the time may be omitted.",
    )
    roof = block_kernels(close)
    return Answer(
        asked=asked,
        verdict=say(
            "In inference, non-matmuls take {lost:listing} of {unit} time ({close[label]}, context {close[context]}).",
            unit=unit,
            lost=[say("{rest:percent} ({name})", rest=1 - part["matmul"], name=name) for name, part in parts.items()],
            close=close.iloc[0],
        ),
        more=say(
            "In {name}, these are mainly {largest:listing}.",
            name=name,
            largest=[say("{of} ({share:percent})", of=of, share=share) for of, share in largest.items()],
        ),
        results="roofline" if len(roof) else listed,
        reason=limits(roof, close["label"].iloc[0])
        if len(roof)
        else "No roofline is drawn: this machine's peak rates are not known.",
        details=listed if len(roof) else (),
    )


def limits(roof: DataFrame, label: str) -> Typst:
    """The rates of a block's compute-bound kernels in low precision."""
    fast = select(roof, precision="bf16", memory=False)
    return say(
        "In bf16, {label}'s {kinds:listing} reach {rates:span percent} of the peak rate (@fig-roofline).",
        label=label,
        kinds=list(fast["kind"]),
        rates=least_and_most(fast["of_peak"]),
    )


def others_table(forward: DataFrame, unit: str) -> Table:
    """Kernels other than matmuls by time, in each precision."""
    keys = ["precision", "kernel", "category"]
    rest = forward[(forward["category"] != "matmul") & ~forward["kernel"].str.startswith(TOGETHER)]
    ranges = rest.groupby([*keys, "range"], as_index=False)[["calls", "ms"]].sum().sort_values("ms", ascending=False)
    lines = ranges.groupby(keys, as_index=False).agg({"range": "first", "calls": "sum", "ms": "sum"})
    lines = lines.sort_values(["precision", "ms"], ascending=False).groupby("precision", sort=False).head(OTHERS_SHOWN)
    lines["percent"] = 100 * lines["ms"] / lines["precision"].map(forward.groupby("precision")["ms"].sum())
    lines["shown"] = lines["kernel"].map(readable)
    columns = {"precision": "{precision}", unit: "{shown}", "category": "{category}", "mostly in": "{range}"}
    columns |= {"calls": "{calls:.0f}", "ms": "{ms:sig}", "share / %": "{percent:.1f}"}
    return grid(lines, columns, text_columns=4)


def attention_times(here: DataFrame) -> DataFrame:
    """The softmax and the two matmuls of attention in inference, ms by size and precision, and their ratios.

    Columns: `inside`, all that the range of the softmax launches; `time` and `flops`, the softmax over the matmuls.
    """
    forward = kernels(here, FORWARD, mode=INFERENCE)
    inside = select(forward, range="softmax")
    matmuls = select(forward[forward["range"].isin(["scores", "final product"])], category="matmul")
    parts = {"softmax": select(inside, category="softmax"), "inside": inside, "matmuls": matmuls}
    keys = [*CELL, "batch_size", "context"]
    times = DataFrame({name: rows.groupby(keys)["ms"].sum() for name, rows in parts.items()}).dropna().reset_index()
    times["time"] = times["softmax"] / times["matmuls"]
    times["flops"] = list(map(flop_ratio, times["size"], times["batch_size"], times["context"]))
    return small_to_large(times)


def flop_ratio(size: str, batch: int, context: int) -> float:
    """Ratio of FLOPs: the softmax over attention's matmuls."""
    shape = parse_size(size)
    pairs = batch, shape.num_heads, context
    return softmax_flops(*pairs) / forward_flops(*pairs, shape.d_model // shape.num_heads, causal=False)


def softmax(here: DataFrame, close: DataFrame) -> Answer:
    """Sub-question (e): softmax against the two matmuls inside attention, in time and in FLOPs."""
    times = attention_times(here)
    quoted = select(times, size=close["size"].iloc[0])
    longer = select(times, precision="bf16")["time"] > 1
    return Answer(
        asked=ASKED["softmax"],
        verdict=say(
            "The softmax takes {row[time]:times} the matmuls' time for {row[flops]:percent} of their FLOPs "
            "({row[label]}, {row[precision]}, context {row[context]}).",
            row=last(quoted),
        ),
        more=say(
            "In fp32, it takes {row[time]:percent} of their time.",
            "In bf16, it takes longer than both matmuls together for {longer} of {sizes}.",
            longer=int(longer.sum()) or None,
            sizes=count(len(longer), "size") if len(longer) else None,
            row=one(quoted, precision="fp32") if len(quoted) > 1 else None,
        ),
        results=Captioned(
            grid(times.assign(ratio=times["time"] / times["flops"]), SOFTMAX, text_columns=2),
            f"Attention in the inference forward pass, context {here['context'].iloc[0]}: the softmax alone, the "
            "softmax with mask and casts, and the two matmuls. FLOPs per score: 5 for the softmax, 4 d for the matmuls "
            "(head dimension d).",
        ),
        reason=softmax_reason(block_kernels(close), close["label"].iloc[0]),
        missing="Not measured: attention's ranges were not profiled.",
    )


def softmax_reason(roof: DataFrame, label: str) -> Typst:
    """Why the softmax takes so long, by the roofline."""
    low, full = (one(roof, precision=name, kind="attention matmuls") for name in ("bf16", "fp32"))
    alone = one(roof, precision="bf16", kind="softmax")
    if low is None or full is None or alone is None:
        return say("The softmax reads and writes every score for only five operations.")
    return say(
        "The softmax reads and writes every score for only five operations. For {label} it reaches "
        "{alone[of_bandwidth]:percent} of the memory bandwidth: it is memory-bound. Autocast runs it in fp32, so bf16 "
        "saves no time.",
        "The matmuls reach {full[of_peak]:percent} of the peak rate in fp32. In bf16 they are "
        "{full[seconds] / low[seconds]:times} as fast and also memory-bound ({low[of_bandwidth]:percent} of the "
        "bandwidth): with heads this narrow they do only {low[intensity]:sig} FLOPs per byte.",
        full=full,
        low=low,
        alone=alone,
        label=label,
    )
