"""Plain attention by itself, eager and compiled, for answers and figures."""

from collections.abc import Mapping
from itertools import product

from pandas import DataFrame

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.attention import Attention
from cs336_systems.record.measurement import WHOLE_CELL, parse_samples
from scripts.rendering.grid import NONE, grid
from scripts.rendering.markup import Table, significant
from scripts.views.cells import side_by_side
from scripts.views.data import reason, select, statistic

PASSES = ("forward", "backward")
METRICS = [*PASSES, "device_busy", "memory_before_backward", "peak_memory"]
TIMES = {f"{name} / ms": name for name in PASSES}
"""The metrics of `grid_table` that are times."""


def grid_table(table: DataFrame, shown: Mapping[str, str], column: str = "mean") -> Table:
    """One line per length and kind, eager or compiled; for each metric, by the title above, a column per d.

    The columns show one statistic.
    """
    ways = {False: "eager", True: "compiled"}
    dimensions, kinds = sorted(set(table["d"])), sorted(set(table["compiled"]))
    lines = [
        {"sequence": sequence, "kind": ways[compiled]}
        | {
            f"{metric} {d}": starred(select(table, sequence=sequence, compiled=compiled, d=d), metric, column)
            for metric in shown.values()
            for d in dimensions
        }
        for sequence, compiled in product(sorted(set(table["sequence"])), kinds)
    ]
    names = {"sequence": "{sequence}"} | ({"": "{kind}"} if len(kinds) > 1 else {})
    columns = {title: {f"d = {d}": f"{{{metric} {d}}}" for d in dimensions} for title, metric in shown.items()}
    return grid(DataFrame(lines), {"": names, **columns}, text_columns=len(names))


def starred(rows: DataFrame, name: str, column: str) -> str:
    """A statistic of a cell's metric, with a star if the time is host-bound; a dash if only the metric is missing."""
    time, busy = (statistic(rows, column, metric=metric) for metric in (name, f"{name}_busy"))
    if time is None:
        return NONE if len(rows) and not len(select(rows, metric=WHOLE_CELL)) else reason(rows)
    return f"{significant(time)}{'*' if busy is not None and host_bound(time, busy) else ''}"


def attention_cells(table: DataFrame, column: str) -> DataFrame:
    """One row per measured cell, short sequences first: its parameters, and a statistic of METRICS.

    Added, of both passes together: `time`; `samples`, step by step; and `host_bound`.
    """
    cells = side_by_side(table, Attention, column).reindex(columns=METRICS)
    cells["time"] = cells["forward"] + cells["backward"]
    passes = side_by_side(table, Attention, "samples").reindex(index=cells.index, columns=PASSES).fillna("")
    cells["samples"] = [list(map(sum, zip(*map(parse_samples, each), strict=False))) for each in passes.to_numpy()]
    cells = cells.reset_index().sort_values(["sequence", "d"])
    return cells.assign(host_bound=host_bound(cells["time"], cells["device_busy"]))
