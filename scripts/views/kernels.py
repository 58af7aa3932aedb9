"""Selections from the kernel profile that its figures, answers and self-checks share."""

import re
from collections.abc import Sequence

from pandas import DataFrame

from cs336_systems.measure.kernel_names import CATEGORIES, is_product
from scripts.views.data import MODES, select, statistic

MODES_PROFILED = {mode: MODES[mode] for mode in ("inference", "train_step")}
"""The kinds of step, and what readers call them."""
SPLIT_SUM = "_split_k"
"""Ends the name of an fp32 kernel of cuBLAS that adds up the parts of a product."""
FORWARD = ["forward"]
FORWARD_AND_BACKWARD = ["forward", "loss", "backward"]
LONG_NAMES = {
    r"sm\d+_xmma_gemm_\w*_([nt]{2})_n_tilesize(\d+x\d+).*": r"xmma_gemm \1 \2",
    r"cutlass_\d+_\w+_(\w*gemm)_(\d+x\d+)_\w+_([nt]{2})_align\d+": r"cutlass \1 \3 \2",
    r"nvjet_sm\d+_\w+?_(\d+x\d+)_\w+_([NT]{3})": r"nvjet \2 \1",
    r"((?:\w+_)?elementwise)_kernel: (\w+?)(?:_kernel)?(?:_cuda)?": r"\1: \2",
}
"""What is shown of long names, by their pattern: of products the layout of the operands and the tile of the result."""


def name_of(size: str, precision: str) -> str:
    """A cell of the reference context in words."""
    return f"{size} {precision}"


def label_of(rows: DataFrame, size: str) -> str:
    """What readers call a size."""
    return str(select(rows, size=size)["label"].iloc[0])


def readable(kernel: str) -> str:
    """A kernel's name as short as a table needs it; another kernel may have the same.

    >>> readable("vectorized_elementwise_kernel: bfloat16_copy_kernel_cuda")
    'vectorized_elementwise: bfloat16_copy'
    """
    for pattern, shown in LONG_NAMES.items():
        if found := re.fullmatch(pattern, kernel):
            return found.expand(shown)
    return kernel


def kernels(table: DataFrame, stages: Sequence[str] = (), **wanted: object) -> DataFrame:
    """The kernels of the selected cells with `ms`, their time in a step, and `calls`, their launches in a step."""
    rows = select(table, metric="kernel", status="ok", **wanted)
    if stages:
        rows = rows[rows["stage"].isin(stages)]
    return rows.assign(ms=rows["mean"] * rows["n"] / rows["steps"] / 1e3, calls=rows["n"] / rows["steps"])


def products(rows: DataFrame) -> DataFrame:
    """Of some kernels those that compute a matrix product, not those that add up the parts of one.

    cuBLAS divides small products along their inner dimension; its two kinds of kernels have two names for the sum.
    """
    named = rows["kernel"].map(is_product).astype(bool) & ~rows["kernel"].str.endswith(SPLIT_SUM)
    return rows[(rows["category"] == "matmul") & named]


def shares(rows: DataFrame) -> dict[str, float]:
    """Each category's share of the time of some kernels; empty without kernels."""
    times = rows.groupby("category")["ms"].sum()
    return {name: float(times.get(name, 0.0) / times.sum()) for name in CATEGORIES} if len(times) else {}


def total(rows: DataFrame, metric: str, stages: Sequence[str]) -> float | None:
    """The mean of a metric of stages, summed over them; None unless all were measured. The rows are of one cell."""
    means = [statistic(rows, "mean", metric=metric, stage=stage) for stage in stages]
    return sum(mean for mean in means if mean is not None) if None not in means else None
