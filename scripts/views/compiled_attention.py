"""Plain attention by itself, eager and compiled, for answers and figures."""

from collections.abc import Mapping
from itertools import product

from pandas import DataFrame

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.attention import Attention
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.rendering.grid import NONE, grid
from scripts.rendering.markup import Table, significant
from scripts.views.cells import side_by_side
from scripts.views.data import reason, select, statistic

PASSES = ("forward", "backward")
TIMES = {f"{name} / ms": name for name in PASSES}
"""The metrics of `grid_table` that are times."""


def grid_table(table: DataFrame, shown: Mapping[str, str]) -> Table:
    """One line per length and kind, eager or compiled; for each metric, by the title above, a column per d, means."""
    ways = {False: "eager", True: "compiled"}
    dimensions, kinds = sorted(set(table["d"])), sorted(set(table["compiled"]))
    lines = [
        {"sequence": sequence, "kind": ways[compiled]}
        | {
            f"{metric} {d}": mean(select(table, sequence=sequence, compiled=compiled, d=d), metric)
            for metric in shown.values()
            for d in dimensions
        }
        for sequence, compiled in product(sorted(set(table["sequence"])), kinds)
    ]
    names = {"sequence": "{sequence}"} | ({"": "{kind}"} if len(kinds) > 1 else {})
    columns = {title: {f"d = {d}": f"{{{metric} {d}}}" for d in dimensions} for title, metric in shown.items()}
    return grid(DataFrame(lines), {"": names, **columns}, text_columns=len(names))


def mean(rows: DataFrame, name: str) -> str:
    """The mean of a cell's metric, with a star if the time is host-bound; a dash if only the metric is missing."""
    mean, busy = (statistic(rows, "mean", metric=metric) for metric in (name, f"{name}_busy"))
    if mean is None:
        return NONE if len(rows) and not len(select(rows, metric=WHOLE_CELL)) else reason(rows)
    return f"{significant(mean)}{'*' if busy is not None and host_bound(mean, busy) else ''}"


def paired(table: DataFrame) -> DataFrame:
    """One row per shape that was measured both ways.

    Columns: the parameters; with the suffixes `_eager` and `_compiled`, `time`, the median of both passes together, ms,
    `device_busy`, ms, and `peak_memory`, MiB, NaN if not measured; `gain`, the ratio of the times; `host_bound`,
    whether either is.
    """
    metrics = [*PASSES, "device_busy", "peak_memory"]
    cells = side_by_side(table, Attention, "median").reindex(columns=metrics)
    cells["time"] = cells["forward"] + cells["backward"]
    cells["host_bound"] = host_bound(cells["time"], cells["device_busy"])
    keys = [name for name in cells.index.names if name != "compiled"]
    eager, compiled = (select(cells.reset_index(), compiled=way) for way in (False, True))
    pairs = eager.merge(compiled, on=keys, suffixes=("_eager", "_compiled"))
    pairs["gain"] = pairs["time_eager"] / pairs["time_compiled"]
    pairs["host_bound"] = pairs["host_bound_eager"] | pairs["host_bound_compiled"]
    return pairs[pairs["gain"].notna()]
