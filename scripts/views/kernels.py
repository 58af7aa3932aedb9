"""Selections from the kernel profile that its figures, answers and self-checks share."""

from collections.abc import Sequence

from pandas import DataFrame

from cs336_systems.measure.kernel_names import CATEGORIES
from scripts.views.data import MODES, reference_context, select, size_order

MODES_PROFILED = {mode: MODES[mode] for mode in ("inference", "train_step")}
"""The kinds of step, and their names for readers."""
CELL = ["size", "label", "precision"]
"""The columns of an answer's cell, at one context."""
FORWARD = ["forward"]
FORWARD_AND_BACKWARD = ["forward", "loss", "backward"]


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


def shares(rows: DataFrame) -> dict[str, float]:
    """Each category's share of the kernels' time; empty without kernels."""
    times = rows.groupby("category")["ms"].sum()
    return {name: float(times.get(name, 0.0) / times.sum()) for name in CATEGORIES} if len(times) else {}
