"""The cells and categories that memory figures and answers share."""

from pandas import DataFrame

from cs336_systems.measure import memory_timeline as of
from scripts.views.data import MODES, PRECISIONS, select, statistic
from scripts.views.units import GIB

FOLLOWED = {
    "inference": MODES["inference"],
    "forward": "forward, with graph",
    "train_step": MODES["train_step"],
}
"""The kinds of step whose memory is recorded, and their names for readers."""
OTHER = "other"


HATCHES = {
    of.PARAMETERS: "",
    of.OPTIMIZER_STATE: "///",
    of.GRADIENTS: "...",
    of.WEIGHT_COPIES: "xxx",
    of.ACTIVATIONS: "",
    of.TEMPORARIES: "\\\\\\",
    OTHER: "",
}
"""The categories of the figures, from the bottom up; the small ones are merged."""
SHOWN = list(HATCHES)


def shown_category(category: str) -> str:
    """The figures' category that a category belongs to."""
    return category if category in SHOWN else OTHER


def parts(cell: DataFrame) -> dict[str, float]:
    """The uses of a cell's memory at the peak: GiB by category of the figures."""
    rows = select(cell, metric="at_peak")
    sums = (rows["mean"] / GIB).groupby(rows["category"].map(shown_category)).sum()
    return {name: float(sums.get(name, 0.0)) for name in SHOWN}


def peak_gib(rows: DataFrame, **wanted: str | int) -> float | None:
    """A cell's peak, GiB."""
    size = statistic(rows, "mean", metric="peak_allocated", **wanted)
    return None if size is None else size / GIB


def contexts(rows: DataFrame) -> list[int]:
    """The contexts of a table, short to long."""
    return sorted(int(context) for context in rows["context"].unique())


FOLLOWED_METRICS = ["peak_allocated", "peak_stage", "at_peak", "stage_events", "active"]
"""The metrics of a cell that the report shows; a cell without any of them was not recorded completely."""


def compared_context(rows: DataFrame) -> int | None:
    """The longest context at which every kind of step was recorded in both precisions, or None."""
    shown = rows[rows["metric"].isin(FOLLOWED_METRICS) & rows["mode"].isin(list(FOLLOWED)) & (rows["status"] == "ok")]
    kinds = shown.drop_duplicates(["context", "metric", "mode", "precision"]).groupby("context").size()
    complete = kinds[kinds == len(FOLLOWED_METRICS) * len(FOLLOWED) * len(PRECISIONS)]
    return int(complete.index.max()) if len(complete) else None
