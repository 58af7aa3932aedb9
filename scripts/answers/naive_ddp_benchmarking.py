"""Answers to `naive_ddp_benchmarking`: the training step when each gradient is all-reduced after the backward pass."""

from math import nan
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.grid import Columns, grid
from scripts.views.bucket_sizes import fitted_line
from scripts.views.communication import MB
from scripts.views.comparison import duels
from scripts.views.comparison_tables import setting
from scripts.views.data_parallel import every_row, in_device_bound_cells, why_untold, wrappers

COLUMNS: Columns = {
    "ms": "{cell}",
    "baseline": "{baseline:cut}",
    "naive": "{median:cut}",
    "exposed": "{exposed:cut}",
    "share / %": "{percent:cut}",
    "alone": "{alone:cut}",
    "uncovered": "{uncovered:cut}",
    "idle": "{idle:cut}",
}
IDLE = 1.0
"""Idle time that is mentioned, at least, in ms."""


def answers(tables: Tables) -> Found:
    """The section's answers, and what all wrappers have in common."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"share": share(tables, table, rows), "s": setting(DataParallelTraining, table, rows)}


def share(tables: Tables, table: DataFrame, rows: DataFrame) -> Answer:
    """Time per step, its share spent on communicating gradients, and its parts in the requested cell."""
    steps = [with_line(tables["all_reduce"], duel.first) for duel in duels(rows, ["naive"], [BASELINE])]
    if not steps:
        return Answer("Step time and share", missing=why_untold(table, rows))
    naive = steps[0]
    others = (say("{row[exposed] / row[median]:percent} ({row[cell]})", row=row) for row in steps[1:])
    facts = Facts(
        naive=naive,
        others=list(filter(None, others)),
        idle=naive["idle"] if naive["idle"] > IDLE else None,
        microseconds=1e3 * naive["idle"] if naive["idle"] > IDLE else None,
        uncovered=naive["uncovered"] if naive["hidden"] == 0 else None,
    )
    takes = "A naive step takes {naive[median]:ms}; "
    return Answer(
        asked="Step time and share",
        verdict=facts.say(
            takes + "communication adds {naive[exposed]:ms} of it, {naive[exposed] / naive[median]:percent} "
            "({naive[cell]})."
        )
        or facts.say(
            takes + "communication, timed separately, is {naive[synchronization_share]:percent} of it ({naive[cell]})."
        )
        or facts.say(takes + "its share of communication cannot be decided ({naive[cell]})."),
        more=facts.say(
            "Without communication it takes {naive[baseline]:ms}.",
            "In the profiled step {uncovered:ms} of communication ({uncovered / naive[timeline_length]:percent}) "
            "run uncovered, and the device idles for another {idle:ms}.",
        ),
        evidence=Captioned(
            grid(DataFrame(steps), COLUMNS),
            f"Steps without communication and with the naive wrapper{in_device_bound_cells(rows)}: medians.",
            legend={
                "exposed": "Exposed: the difference",
                "alone": "alone: what the fitted line of an all-reduce gives for as many calls and bytes",
                "idle": "uncovered and idle: communication while nothing computes, and further idle time, in the "
                "profiled step",
            },
        ),
        reason=facts.say(
            "In other settings communication is {others:listing} of the step.",
            "The wrapper all-reduces {naive[messages]:whole} gradients one by one, {naive[communicated]:size} "
            "together.",
            "The line of @sec-distributed_communication_single_node predicts {naive[alone]:ms} for these calls, "
            "including {naive[calls]:ms} of overhead.",
            "The device idles for {microseconds / naive[messages]:µs} per call, likely because the replayed graph "
            "runs them strictly one after the other.",
        ),
        details=every_row(table, rows),
    )


def with_line(all_reduce: DataFrame, row: Series) -> dict[str, Any]:
    """A row with `percent`, the exposed share, and the ms that the fitted line of all-reduces predicts for its step.

    `alone` is for all its calls and bytes, `calls` for the overhead; NaN if unknown.
    """
    line = fitted_line(all_reduce, row)
    calls = 1e3 * line.overhead * row["messages"] if line else nan
    sent = 1e3 * MB * row["communicated"] / line.bandwidth if line else nan
    return {**row, "percent": 100 * row["exposed"] / row["median"], "calls": calls, "alone": calls + sent}
