"""What the memory figures and answers share: which cells they show, and the categories that a reader sees."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from scripts.data import one, select, size_order, statistic
from scripts.style import COLOURS

GIB = 1024 * MIB
MODES = {"inference": "inference", "forward": "forward, with graph", "train_step": "training step"}
"""The kinds of step that are followed, and what readers call them."""
OTHER = "other"
SHOWN = [
    of.PARAMETERS,
    of.OPTIMIZER_STATE,
    of.GRADIENTS,
    of.WEIGHT_COPIES,
    of.ACTIVATIONS,
    of.TEMPORARIES,
    OTHER,
]
"""The categories of the figures, from the bottom up; the small ones are one."""
LOOKS = {
    name: {"facecolor": COLOURS[index], "hatch": ["", "///", "...", "xxx", "", "\\\\\\", ""][index]}
    for index, name in enumerate(SHOWN)
}


def profiled(table: DataFrame) -> DataFrame:
    """The rows of the largest size, with plain attention."""
    sizes = size_order(table)
    return select(table, size=sizes[-1], attention="plain") if sizes else table


def shown_category(category: str) -> str:
    """The category of the figures that a category belongs to."""
    return category if category in SHOWN else OTHER


def parts(rows: DataFrame, metric: str, **wanted: str) -> dict[str, float]:
    """GiB by category of the figures, in a metric that has a row per category."""
    found = select(rows, metric=metric, **wanted)
    sums = dict.fromkeys(SHOWN, 0.0)
    for category, size in zip(found["category"], found["mean"], strict=True):
        sums[shown_category(category)] += size / GIB
    return sums


def peak_gib(rows: DataFrame, **wanted: str | int) -> float | None:
    """A cell's peak, GiB."""
    size = statistic(rows, "mean", metric="peak_allocated", **wanted)
    return None if size is None else size / GIB


def contexts(rows: DataFrame) -> list[int]:
    """The contexts of a table, short to long."""
    return sorted(int(context) for context in rows["context"].unique())


def compared_context(rows: DataFrame, **wanted: str) -> int | None:
    """The longest context at which every kind of step was measured."""
    complete = [
        context
        for context in contexts(rows)
        if all(one(rows, metric="peak_allocated", context=context, mode=mode, **wanted) is not None for mode in MODES)
    ]
    return max(complete, default=None)
