"""Self-checks of data-parallel training."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Evidence, check, name_row
from scripts.views.data import measured_gpu, select, statistic

CELL = parameters(DataParallelTraining)
AFTER_BACKWARD = ("naive", "flat")
"""Wrappers that communicate while nothing else runs."""
ROUNDING = 0.01
"""Of a step: what clocks may make times differ by that are equal."""
ALLOWED = 1 + TOLERANCE["GPU"]
"""The most of an all-reduce's rate that a wrapper may reach."""
BF16_ROUNDING = 2.0**-8
"""The largest relative error of rounding to bf16."""


@check("{n} wrappers, p80 against p20 less {most:.0%}", "no step was timed with and without communication")
def nothing_beats_the_baseline(data_parallel: DataFrame) -> Evidence:
    """No training step with communication is shorter than without."""
    steps = select(data_parallel, metric="step")
    baselines = select(steps, wrapper=BASELINE).set_index(CELL)["p20"].rename("baseline")
    slack = ROUNDING if measured_gpu({"": data_parallel}) else TOLERANCE["CPU"]
    for _, row in steps[steps["wrapper"] != BASELINE].join(baselines, on=CELL, how="inner").iterrows():
        found = f"p80 {row['p80']:.2f} ms, without p20 {row['baseline']:.2f} ms"
        yield Case(name_row(DataParallelTraining.name, row), row["p80"] < (1 - slack) * row["baseline"], found, slack)


@check(
    "{n} wrappers; the closest reaches {most:.0%} of its rate, allowed {ALLOWED:.0%}",
    "no link between GPUs was measured",
)
def nothing_beats_the_link(data_parallel: DataFrame, all_reduce: DataFrame) -> Evidence:
    """Communication after the backward pass is no faster than the fastest measured all-reduce.

    It takes no less per byte, while nothing else runs.
    """
    rates = select(all_reduce, metric="algorithm_bandwidth", backend="nccl")
    rows = select(data_parallel, metric="synchronization")
    for _, row in rows[rows["wrapper"].isin(AFTER_BACKWARD) & (rows["gpu"] != "")].iterrows():
        best = select(rates, processes=row["processes"])["median"].max()
        size = statistic(data_parallel, "mean", metric="communicated", wrapper=row["wrapper"], **row[CELL])
        if not best > 0 or size is None:
            continue
        share = float(size / best / row["median"])  # MB / (GB/s) is ms
        found = f"{row['median']:.2f} ms, at least {size / best:.2f} ms expected"
        yield Case(name_row(DataParallelTraining.name, row), share > ALLOWED, found, share)


@check("{n} cells; the largest is {most:.1e}")
def bf16_rounds(data_parallel: DataFrame) -> Evidence:
    """The error of gradients sent as bf16 is one that rounding explains, and not zero.

    n ranks' gradients are rounded once each, and n times while they are added and divided, by at most 2^-8 of
    themselves; where they have nothing in common, their mean's norm is that of the mean of their norms over sqrt(n).
    """
    for _, row in select(data_parallel, metric="gradient_error").iterrows():
        wrong = not 0 < row["mean"] <= BF16_ROUNDING * (row["processes"] + 1) * row["processes"] ** 0.5
        yield Case(name_row(DataParallelTraining.name, row), wrong, f"{row['mean']:.1e}", float(row["mean"]))
