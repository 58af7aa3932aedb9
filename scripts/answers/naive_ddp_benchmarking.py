"""Answers to `naive_ddp_benchmarking`: the training step when each gradient is all-reduced after the backward pass."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst
from scripts.views.bucket_sizes import fitted_line
from scripts.views.communication import MB, data_size
from scripts.views.comparison import Duel, duels
from scripts.views.comparison_tables import fixed, setting
from scripts.views.data_parallel import every_row, why_untold, wrappers

COLUMNS = {
    "baseline": "floor",
    "naive": "median",
    "exposed": "exposed",
    "share / %": "share",
    "alone": "alone",
    "uncovered": "uncovered",
    "idle": "idle",
}
IDLE = 1.0
"""Milliseconds from which on idle time is worth a sentence."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, and what all wrappers have in common."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {
        "share": share(tables, table, rows),
        "s": setting(DataParallelTraining, table, rows) if len(rows) else None,
    }


def share(tables: Mapping[str, DataFrame], table: DataFrame, rows: DataFrame) -> Answer:
    """Time per step and the share of it that goes into communicating gradients."""
    found = duels(rows, ["naive"], [FLOOR])
    asked = found[0] if found else None
    naive = Series(dtype=float) if asked is None else asked.first
    cell = None if asked is None else asked.cell
    step = naive.get("median")
    verdict = say(
        "A naive step takes {step:ms}; {share:percent} of it is exposed communication ({cell}).",
        step=step,
        share=exposed_share(naive),
        cell=cell,
    ) or say(
        "A naive step takes {step:ms}; communication timed apart is {share:percent} of it ({cell}).",
        step=step,
        share=naive.get("synchronization_share"),
        cell=cell,
    )
    others = [
        say("{share:percent} ({cell})", share=exposed_share(duel.first), cell=duel.cell)
        for duel in found[1:]
        if exposed_share(duel.first) == exposed_share(duel.first)
    ]
    return Answer(
        asked="Step time and share",
        verdict=verdict,
        more=paragraph(
            say("Without communication it takes {floor:ms}.", floor=naive.get("floor")),
            say("Elsewhere the share is {others:listing}.", others=others),
        ),
        evidence=[Captioned(share_table(tables["all_reduce"], found), CAPTION)] if found else [],
        reason=reason(tables["all_reduce"], naive),
        details=[
            Captioned(shown, "Baseline and naive wrapper in every cell measured, host-bound ones too.", long=True)
            for shown in [every_row(table, rows, [FLOOR, "naive"]) if len(rows) else None]
            if shown is not None
        ],
        missing=why_untold(table, rows),
    )


CAPTION = (
    "Steps without communication and with the naive wrapper in device-bound cells: medians; exposed: the difference; "
    "alone: what the fitted line of an all-reduce gives for as many calls and bytes; uncovered and idle: communication "
    "next to no compute, and further idle time, in the profiled step."
)


def exposed_share(row: Series) -> float:
    """Exposed communication as a share of the step; NaN where it was not measured."""
    return float(row.get("exposed", float("nan")) / row.get("median", float("nan")))


def share_table(all_reduce: DataFrame, found: list[Duel]) -> Table:
    """A row per cell; columns of which nothing is known are left out."""
    rows = DataFrame([duel.first for duel in found])
    rows = rows.assign(
        share=100 * rows["exposed"] / rows["median"],
        alone=[sum(alone(all_reduce, row) or [float("nan")]) for _, row in rows.iterrows()],
    )
    columns = {name: key for name, key in COLUMNS.items() if rows[key].notna().any()}
    body = [[row["cell"], *(fixed(row[key]) for key in columns.values())] for _, row in rows.iterrows()]
    return Table(["ms", *columns], body)


def alone(all_reduce: DataFrame, row: Series) -> tuple[float, float] | None:
    """Overhead and time of the bytes that the line of all-reduces gives for a step's calls, ms, if both are known."""
    line = fitted_line(all_reduce, row)
    if line is None or not row["messages"] > 0 or not row["communicated"] > 0:
        return None
    return 1e3 * line.overhead * row["messages"], 1e3 * MB * row["communicated"] / line.bandwidth


def reason(all_reduce: DataFrame, naive: Series) -> Typst:
    """Where the time goes in the asked cell."""
    if not len(naive):
        return NOTHING
    expected = alone(all_reduce, naive)
    calls = naive["messages"] if naive["messages"] > 0 else None
    idle = naive["idle"] if naive["idle"] > IDLE else None
    return paragraph(
        say(
            "The wrapper all-reduces {calls} gradients one by one, {size} together.",
            calls=None if calls is None else int(calls),
            size=data_size(naive["communicated"]) if naive["communicated"] > 0 else None,
        ),
        say(
            "By the line of @sec-distributed_communication_single_node these calls take {all:ms}, of which {calls:ms} "
            "are overhead.",
            all=sum(expected) if expected else None,
            calls=expected[0] if expected else None,
        ),
        say(
            "In the profiled step {uncovered:ms} of communication run, none of it next to compute.",
            uncovered=naive["uncovered"] if naive["hidden"] == 0 else None,
        ),
        say(
            "The device idles for another {idle:ms}, {each:µs} per call; likely the replayed graph runs them strictly "
            "one after the other.",
            idle=idle,
            each=1e3 * idle / calls if idle and calls else None,
        ),
    )
