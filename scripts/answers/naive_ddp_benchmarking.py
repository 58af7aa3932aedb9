"""Answers to `naive_ddp_benchmarking`: the training step when each gradient is all-reduced after the backward pass."""

from math import nan

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.bucket_sizes import fitted_line
from scripts.views.communication import MB, data_size
from scripts.views.comparison import duels
from scripts.views.comparison_tables import setting
from scripts.views.data import first
from scripts.views.data_parallel import every_row, why_untold, wrappers

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
"""Milliseconds from which on idle time is worth a sentence."""


def answers(tables: Tables) -> Found:
    """The section's answers, and what all wrappers have in common."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"share": share(tables, table, rows), "s": setting(DataParallelTraining, table, rows)}


def share(tables: Tables, table: DataFrame, rows: DataFrame) -> Answer:
    """Time per step and the share of it that goes into communicating gradients."""
    found = DataFrame([duel.first for duel in duels(rows, ["naive"], [BASELINE])])
    if not len(found):
        return Answer("Step time and share", missing=why_untold(table, rows))
    found = found.assign(
        share=found["exposed"] / found["median"],
        percent=100 * found["exposed"] / found["median"],
        alone=[sum(alone(tables["all_reduce"], row)) for _, row in found.iterrows()],
    )
    naive = first(found)
    others = [say("{row[share]:percent} ({row[cell]})", row=row) for _, row in found[1:].iterrows()]
    facts = Facts(naive=naive, others=list(filter(None, others)))
    return Answer(
        asked="Step time and share",
        verdict=facts.say(
            "A naive step takes {naive[median]:ms}; {naive[share]:percent} of it is exposed communication "
            "({naive[cell]})."
        )
        or facts.say(
            "A naive step takes {naive[median]:ms}; communication timed apart is {naive[synchronization_share]:percent}"
            " of it ({naive[cell]})."
        )
        or facts.say(
            "A naive step takes {naive[median]:ms}; its share of communication cannot be told ({naive[cell]})."
        ),
        more=facts.say(
            "Without communication it takes {naive[baseline]:ms}.", "In other settings the share is {others:listing}."
        ),
        evidence=Captioned(
            grid(found, COLUMNS),
            "Steps without communication and with the naive wrapper in device-bound cells: medians; exposed: the "
            "difference; alone: what the fitted line of an all-reduce gives for as many calls and bytes; uncovered "
            "and idle: communication while nothing computes, and further idle time, in the profiled step.",
        ),
        reason=reason(tables["all_reduce"], found.iloc[0]),
        details=every_row(table, rows),
    )


def alone(all_reduce: DataFrame, row: Series) -> tuple[float, float]:
    """Overhead and time of the bytes that the line of all-reduces gives for a step's calls, ms; NaN if not known."""
    line = fitted_line(all_reduce, row)
    if line is None or not row["messages"] > 0 or not row["communicated"] > 0:
        return nan, nan
    return 1e3 * line.overhead * row["messages"], 1e3 * MB * row["communicated"] / line.bandwidth


def reason(all_reduce: DataFrame, naive: Series) -> Typst:
    """Where the time goes in the asked cell."""
    expected = alone(all_reduce, naive)
    idle = naive["idle"] if naive["idle"] > IDLE else None
    return say(
        "The wrapper all-reduces {naive[messages]:whole} gradients one by one, {size} together.",
        "By the line of @sec-distributed_communication_single_node these calls take {all:ms}, of which {calls:ms} "
        "are overhead.",
        "In the profiled step {uncovered:ms} of communication run, none of it hidden.",
        "The device idles for another {idle:ms}, {each:µs} per call; likely the replayed graph runs them strictly "
        "one after the other.",
        naive=naive,
        all=sum(expected),
        calls=expected[0],
        idle=idle,
        size=data_size(naive["communicated"]) if naive["communicated"] > 0 else None,
        uncovered=naive["uncovered"] if naive["hidden"] == 0 else None,
        each=1e3 * idle / naive["messages"] if idle else None,
    )
