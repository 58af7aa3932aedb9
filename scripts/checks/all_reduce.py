"""Self-checks of all-reduces."""

import itertools
from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from scripts.checks import Check, conclude
from scripts.views.communication import BACKENDS
from scripts.views.data import measured_gpu, select

CONDITIONS = ["backend", "processes", "warmup", "steps"]


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["all_reduce"]
    yield sums_are_right(table)
    yield larger_messages_take_longer(table)
    yield nothing_beats_the_link(table)


def name_cell(row: Series) -> str:
    """A cell in words."""
    return f"{BACKENDS[row['backend']]}, {row['processes']} processes, {row['megabytes']} MB"


def sums_are_right(table: DataFrame) -> Check:
    """No number of any rank's sum was wrong, before timing and after."""
    rows = select(table, metric="wrong_numbers")
    complaints = [f"{name_cell(row)}: up to {row['p80']:.0f} wrong" for _, row in rows[rows["mean"] > 0].iterrows()]
    check = "every number of an all-reduce's sum was right on every rank, before the timing and after it"
    return conclude(check, complaints, len(rows), f"{len(rows)} cells")


def larger_messages_take_longer(table: DataFrame) -> Check:
    """The larger one of two neighbouring sizes is not the faster one."""
    check = "the larger message never has the faster all-reduce"
    complaints, examined = [], 0
    for _, group in select(table, metric="time", status="ok").groupby(CONDITIONS):
        rows = [row for _, row in group.sort_values("megabytes").iterrows()]
        for small, large in itertools.pairwise(rows):
            examined += 1
            if small["p20"] >= large["p80"]:
                complaints.append(f"{name_cell(small)}: p20 {small['p20']:.3f} ms, {name_cell(large)}: p80 less")
    return conclude(check, complaints, examined, f"{examined} pairs of neighbouring sizes, p20 against p80")


def nothing_beats_the_link(table: DataFrame) -> Check:
    """No GPU sent more than its link can carry.

    Bus bandwidth counts the ring's 2 (n - 1) / n bytes. A switch that adds and copies (NVLink SHARP) spares bytes: then
    a GPU sends (n + 1) / n, each of its n shards to be added and one sum.
    """
    check = "no bus bandwidth is above the data sheet's link, or what a switch that adds makes of it"
    peak = gpu_of(measured_gpu({"": table}))
    rows = select(table, metric="bus_bandwidth", status="ok", backend="nccl")
    if peak is None or peak.link is None or not len(rows):
        return Check(check, "not applicable", "no GPU's link was measured, or no peak rate is listed for it")
    shares = []
    for _, row in rows.iterrows():
        ring, switch = (2 * (row["processes"] - 1), row["processes"] + 1)
        shares.append((name_cell(row), 1e9 * row["median"] / (peak.link * max(1, ring / switch))))
    complaints = [f"{cell}: {share:.0%} of it" for cell, share in shares if share > 1]
    best = max(share for _, share in shares)
    return conclude(check, complaints, len(shares), f"{len(shares)} cells; the closest reaches {best:.0%}")
