"""Selections from the kernel profile that its figures, answers and self-checks share."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pandas import DataFrame

from cs336_systems.accounting.attention import forward_flops, softmax_flops
from cs336_systems.compare.speed import host_bound
from cs336_systems.measure.kernel_names import CATEGORIES, is_product
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import percent
from scripts.views.data import MODES, PRECISIONS, one, reference_context, select, size_order, statistic
from scripts.views.steps import steady, step_table

MODES_PROFILED = {mode: MODES[mode] for mode in ("inference", "train_step")}
"""The kinds of step, and their names for readers."""
SPLIT_SUM = "_split_k"
"""Suffix of the names of cuBLAS's fp32 kernels that add up the parts of a matmul."""
TOGETHER = "others ("
"""Prefix of the name of a row for several small kernels."""
FORWARD = ["forward"]
FORWARD_AND_BACKWARD = ["forward", "loss", "backward"]
LONG_NAMES = {
    r"sm\d+_xmma_gemm_\w*_([nt]{2})_n_tilesize(\d+x\d+).*": r"xmma_gemm \1 \2",
    r"cutlass_\d+_\w+_(\w*gemm)_(\d+x\d+)_\w+_([nt]{2})_align\d+": r"cutlass \1 \3 \2",
    r"nvjet_sm\d+_\w+?_(\d+x\d+)_\w+_([NT]{3})": r"nvjet \2 \1",
    r"((?:\w+_)?elementwise)_kernel: (\w+?)(?:_kernel)?(?:_cuda)?": r"\1: \2",
}
"""The displayed part of long names, by their pattern: for matmuls, the layout of the operands and the tile of the
result."""


def label_of(rows: DataFrame, size: str) -> str:
    """The name of a size."""
    return str(select(rows, size=size)["label"].iloc[0])


def readable(kernel: str) -> str:
    """A kernel's name, shortened for a table; it may not be unique.

    >>> readable("vectorized_elementwise_kernel: bfloat16_copy_kernel_cuda")
    'vectorized_elementwise: bfloat16_copy'
    """
    for pattern, shown in LONG_NAMES.items():
        if match := re.fullmatch(pattern, kernel):
            return match.expand(shown)
    return kernel


def kernels(table: DataFrame, stages: Sequence[str] = (), **wanted: object) -> DataFrame:
    """The kernels of the selected cells with `ms`, their time in a step, and `calls`, their launches in a step."""
    rows = select(table, metric="kernel", **wanted)
    if stages:
        rows = rows[rows["stage"].isin(stages)]
    return rows.assign(ms=rows["mean"] * rows["n"] / rows["steps"] / 1e3, calls=rows["n"] / rows["steps"])


def profiled_closely(table: DataFrame) -> DataFrame:
    """The rows of the cells that answers quote: eager, plain attention, reference context, one size.

    It is the largest size whose training step was profiled in every precision, or the largest of all.
    """
    plain = select(table, compiled=False, attention="plain")
    launched = kernels(plain)
    launched = select(launched, context=reference_context(launched))
    sizes, precisions = size_order(launched), launched["precision"].nunique()
    trained = select(launched, mode="train_step").groupby("size")["precision"].nunique()
    complete = [size for size in sizes if trained.get(size) == precisions]
    return select(plain, context=reference_context(launched), size=(complete or sizes or [""])[-1])


def products(rows: DataFrame) -> DataFrame:
    """The kernels that compute a matrix product, without those that add up its parts.

    cuBLAS splits small products along their inner dimension; its two kinds of kernels have two names for the sum.
    """
    named = rows["kernel"].map(is_product).astype(bool) & ~rows["kernel"].str.endswith(SPLIT_SUM)
    return rows[(rows["category"] == "matmul") & named]


def shares(rows: DataFrame) -> dict[str, float]:
    """Each category's share of the kernels' time; empty without kernels."""
    times = rows.groupby("category")["ms"].sum()
    return {name: float(times.get(name, 0.0) / times.sum()) for name in CATEGORIES} if len(times) else {}


def total(rows: DataFrame, metric: str, stages: Sequence[str]) -> float | None:
    """The mean of a metric of stages, summed over them; None unless all were measured. The rows are of one cell."""
    means = [statistic(rows, "mean", metric=metric, stage=stage) for stage in stages]
    return sum(mean for mean in means if mean is not None) if None not in means else None


@dataclass(frozen=True)
class Longest:
    """The kernel with most time in a pass."""

    kernel: str
    category: str
    calls: float
    """Its calls in the pass."""
    share: float
    """Of the pass's time."""

    @property
    def texts(self) -> dict[str, str]:
        """Its name, calls and share, formatted for a table."""
        return {"kernel": readable(self.kernel), "calls": f"{self.calls:.0f}", "share": str(percent(self.share))}


def top(rows: DataFrame) -> Longest | None:
    """The kernel with most time among a pass's rows."""
    named = rows[~rows["kernel"].str.startswith(TOGETHER)] if len(rows) else rows
    if not len(named):
        return None
    kernel = str(named.groupby("kernel")["ms"].sum().idxmax())
    launches = select(rows, kernel=kernel)
    calls, share = float(launches["calls"].sum()), float(launches["ms"].sum() / rows["ms"].sum())
    return Longest(kernel, str(launches["category"].iloc[0]), calls, share)


def forward_passes(here: DataFrame, end_to_end: DataFrame, *, on_gpu: bool) -> DataFrame:
    """The forward pass of each size and precision by three clocks, ms, and whether any of the processes was
    host-bound.
    """
    elsewhere = select(steady(step_table(end_to_end)), compiled=False, attention="plain", mode="inference")
    lines = []
    for size, precision in itertools.product(size_order(here), PRECISIONS):
        rows = select(here, size=size, precision=precision, mode="inference")
        busy, stage = (total(rows, metric, FORWARD) for metric in ("stage_busy", "stage"))
        if busy is not None and stage is not None:
            other = one(elsewhere, size=size, precision=precision, context=rows["context"].iloc[0])
            bound = on_gpu and (host_bound(stage, busy) or (other is not None and other["host_bound"]))
            timer = math.nan if other is None else other["forward"]
            lines.append((rows["label"].iloc[0], precision, busy, stage, timer, busy / stage, bool(bound)))
    return DataFrame(lines, columns=["label", "precision", "kernels", "stage", "timer", "busy", "host_bound"])


def attention_times(here: DataFrame) -> DataFrame:
    """The softmax and the two matmuls of attention in inference, ms by size and precision, and their ratios.

    Columns: `inside`, all that the range of the softmax launches; `time` and `flops`, the softmax over the matmuls.
    """
    lines = []
    for size, precision in itertools.product(size_order(here), PRECISIONS):
        forward = kernels(here, FORWARD, size=size, precision=precision, mode="inference")
        matmuls = forward[forward["range"].isin(["scores", "final product"]) & (forward["category"] == "matmul")]
        inside = select(forward, range="softmax")
        times = [rows["ms"].sum() for rows in (select(inside, category="softmax"), inside, matmuls)]
        if all(times):
            shape, cell = parse_size(size), forward.iloc[0]
            pairs = int(cell["batch_size"]), shape.num_heads, int(cell["context"])
            flops = softmax_flops(*pairs) / forward_flops(*pairs, shape.d_model // shape.num_heads, causal=False)
            lines.append((cell["label"], precision, *times, times[0] / times[2], flops))
    return DataFrame(lines, columns=["label", "precision", "softmax", "inside", "matmuls", "time", "flops"])
