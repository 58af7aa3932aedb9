"""Answers to `ddp_overlap_individual_parameters_benchmarking`: all-reduces that start during the backward pass."""

from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables
from scripts.views.comparison import duels, fastest, traced_cell
from scripts.views.comparison_tables import missing
from scripts.views.data_parallel import (
    ACROSS,
    WITHOUT_COMMUNICATION,
    across_cells,
    difference,
    why_untold,
    wrappers,
)

WRAPPERS = {"naive": ["naive"], "flat": ["flat"], "overlapped": ["overlapped"]}
SLOWER = 1.01
"""Compute that takes longer by a larger ratio is slowed down."""


def answers(tables: Tables) -> Found:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"time": time(table, rows), "traces": traces(table, rows)}


def time(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (a): the step against the two before."""
    found, before = (duels(rows, ["overlapped"], [other]) for other in ("flat", "naive"))
    if not found:
        return Answer("(a) Step time", missing=why_untold(table, rows))
    asked, own = found[0], found[0].first
    facts = Facts(own=own, stretch=own["stretch"] if own["stretch"] > SLOWER else None)
    return Answer(
        asked="(a) Step time",
        verdict=asked.speed.sentence("overlapped", "flat", f"({asked.cell})"),
        more=facts.say(
            *(duel.speed.sentence("overlapped", "naive") for duel in before if duel.cell == asked.cell),
            "The step takes {own[median]:ms}, of which {own[exposed]:ms} are exposed communication.",
        ),
        evidence=Captioned(across_cells(table, rows, WITHOUT_COMMUNICATION | WRAPPERS), ACROSS),
        reason=facts.say(
            difference(own, asked.other, "overlapped", "flat"),
            "What is hidden is not free: next to communication the same compute takes {stretch:times} as long as "
            "without, likely because NCCL's kernels occupy SMs (@sec-beyond_nccl).",
        ),
    )


def traces(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): what the drawn steps hide of their communication."""
    cell = traced_cell(rows)
    naive, flat, overlapped = (fastest(cell, [name]) for name in WRAPPERS)
    facts = Facts(overlapped=overlapped, naive=naive, flat=flat)
    return Answer(
        asked="(b) Traces",
        verdict=facts.say(
            "Overlapped hides {overlapped[hidden_share]:percent} of its communication behind compute, naive "
            "{naive[hidden_share]:percent}."
        ),
        more=facts.say("The flat wrapper hides {flat[hidden_share]:percent} (one step each, rank 0, {flat[cell]})."),
        evidence="ddp_timelines",
        missing="No step was profiled: a trace of kernels needs a GPU." if len(rows) else missing(table),
    )
