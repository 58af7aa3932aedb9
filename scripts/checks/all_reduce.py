"""Self-checks of all-reduces."""

import itertools

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from scripts.checks import Case, Evidence, NotApplicable, check
from scripts.views.communication import BACKENDS
from scripts.views.data import measured_gpu, select

CONDITIONS = ["backend", "processes", "warmup", "steps"]


def name_cell(row: Series) -> str:
    """A cell in words."""
    return f"{BACKENDS[row['backend']]}, {row['processes']} processes, {row['megabytes']} MB"


@check("{n} cells")
def sums_are_right(all_reduce: DataFrame) -> Evidence:
    """Every number of an all-reduce's sum was right on every rank, before the timing and after it."""
    rows = select(all_reduce, metric="wrong_numbers")
    yield len(rows)
    for _, row in rows[rows["mean"] > 0].iterrows():
        yield f"{name_cell(row)}: up to {row['p80']:.0f} wrong"


@check("{n} pairs of neighbouring sizes, p20 against p80")
def larger_messages_take_longer(all_reduce: DataFrame) -> Evidence:
    """The larger message never has the faster all-reduce."""
    for _, group in select(all_reduce, metric="time").groupby(CONDITIONS):
        rows = [row for _, row in group.sort_values("megabytes").iterrows()]
        for small, large in itertools.pairwise(rows):
            found = f"p20 {small['p20']:.3f} ms, {name_cell(large)}: p80 less"
            yield Case(name_cell(small), small["p20"] >= large["p80"], found)


@check("{n} cells; the closest reaches {most:.0%}")
def nothing_beats_the_link(all_reduce: DataFrame) -> Evidence:
    """No bus bandwidth is above the data sheet's link, or what a switch that adds makes of it.

    Bus bandwidth counts the ring's 2 (n - 1) / n bytes. A switch that adds and copies (NVLink SHARP) spares bytes: then
    a GPU sends (n + 1) / n, each of its n shards to be added and one sum.
    """
    peak = gpu_of(measured_gpu({"": all_reduce}))
    rows = select(all_reduce, metric="bus_bandwidth", backend="nccl")
    if peak is None or peak.link is None or not len(rows):
        raise NotApplicable("no GPU's link was measured, or no peak rate is listed for it")
    for _, row in rows.iterrows():
        ring, switch = (2 * (row["processes"] - 1), row["processes"] + 1)
        share = float(1e9 * row["median"] / (peak.link * max(1, ring / switch)))
        yield Case(name_cell(row), share > 1, f"{share:.0%} of it", share)
