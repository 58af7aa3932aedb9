"""Self-checks of data-parallel training."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import state_bytes
from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from cs336_systems.measure.record import parameters
from cs336_systems.sizes import parse_size
from scripts.checks import TOLERANCE, Check, conclude, outside
from scripts.views.data import measured_gpu, select, statistic

CELL = parameters(DataParallelTraining)
AFTER_BACKWARD = ("naive", "flat")
"""Wrappers that communicate while nothing else runs."""
ROUNDING = 0.01
"""Of a step: what clocks may make times differ by that are equal."""
BF16_ROUNDING = 2.0**-8
"""The largest relative error of rounding to bf16."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["data_parallel"]
    yield nothing_beats_the_floor(table)
    yield nothing_beats_the_link(table, tables["all_reduce"])
    yield bf16_rounds(table)
    yield memory_holds_the_state(table)


def name_contender(row: Series) -> str:
    """A wrapper in a cell, in words."""
    bucket = f" {row['bucket_mb']} MB" if row["bucket_mb"] else ""
    compiled = ", compiled" if row["compiled"] else ""
    return f"{row['wrapper']}{bucket}, {row['processes']} processes, {row['precision']}{compiled}"


def nothing_beats_the_floor(table: DataFrame) -> Check:
    """No step with communication is shorter than one without."""
    check = "no training step with communication is shorter than without"
    steps = select(table, metric="step", status="ok")
    floors = select(steps, wrapper=FLOOR).set_index(CELL)["p20"].rename("floor")
    rows = steps[steps["wrapper"] != FLOOR].join(floors, on=CELL, how="inner")
    slack = ROUNDING if measured_gpu({"": table}) else TOLERANCE["CPU"]
    complaints = [
        f"{name_contender(row)}: p80 {row['p80']:.2f} ms, without p20 {row['floor']:.2f} ms"
        for _, row in rows[rows["p80"] < (1 - slack) * rows["floor"]].iterrows()
    ]
    return conclude(check, complaints, len(rows), f"{len(rows)} wrappers, p80 against p20 less {slack:.0%}")


def nothing_beats_the_link(table: DataFrame, all_reduces: DataFrame) -> Check:
    """Gradients that travel while nothing else runs take no less than the fastest all-reduce takes per byte."""
    check = "communication after the backward pass is no faster than the fastest measured all-reduce"
    complaints, closest, examined = [], 0.0, 0
    rates = select(all_reduces, metric="algorithm_bandwidth", status="ok", backend="nccl")
    rows = select(table, metric="synchronization", status="ok")
    for _, row in rows[rows["wrapper"].isin(AFTER_BACKWARD) & (rows["gpu"] != "")].iterrows():
        best = select(rates, processes=row["processes"])["median"].max()
        size = statistic(table, "mean", metric="communicated", wrapper=row["wrapper"], **row[CELL])
        if not best > 0 or size is None:
            continue
        examined += 1
        share = size / best / row["median"]  # MB / (GB/s) is ms
        closest = max(closest, share)
        if share > 1 + TOLERANCE["GPU"]:
            complaints.append(f"{name_contender(row)}: {row['median']:.2f} ms, at least {size / best:.2f} ms expected")
    summary = f"{examined} wrappers; the closest reaches {closest:.0%} of its rate, allowed {1 + TOLERANCE['GPU']:.0%}"
    return conclude(check, complaints, examined, summary if examined else "no link between GPUs was measured")


def bf16_rounds(table: DataFrame) -> Check:
    """Gradients that travelled as bf16 have an error, and one that rounding explains.

    n ranks' gradients are rounded once each, and n times while they are added and divided, by at most 2^-8 of
    themselves; where they have nothing in common, their mean's norm is that of the mean of their norms over sqrt(n).
    """
    check = "the error of gradients sent as bf16 is one that rounding explains, and not zero"
    rows = select(table, metric="gradient_error", status="ok")
    complaints = [
        f"{name_contender(row)}: {row['mean']:.1e}"
        for _, row in rows.iterrows()
        if not 0 < row["mean"] <= BF16_ROUNDING * (row["processes"] + 1) * row["processes"] ** 0.5
    ]
    largest = rows["mean"].max() if len(rows) else 0.0
    return conclude(check, complaints, len(rows), f"{len(rows)} cells; the largest is {largest:.1e}")


def memory_holds_the_state(table: DataFrame) -> Check:
    """Peak memory is no less than weights, gradients and moments, and no more than the device has."""
    check = "the peak memory of data-parallel training is between the closed form of the state and the device's memory"
    complaints = []
    rows = select(table, metric="peak_memory", status="ok")
    for _, row in rows.iterrows():
        least = state_bytes("train_step", parse_size(row["size"]), row["vocab_size"])
        complaints += outside(row, name_contender(row), least)
    summary = f"{len(rows)} wrappers" if len(rows) else "peak memory is counted on GPUs only"
    return conclude(check, complaints, len(rows), summary)
