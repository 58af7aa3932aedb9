"""Answers to `ddp_overlap_individual_parameters_benchmarking`: all-reduces that start during the backward pass."""

from pandas import DataFrame

from scripts.rendering.answer import Answer, Answers, Facts, Tables, say
from scripts.views.comparison import duels, fastest, traced_cell
from scripts.views.comparison_tables import missing
from scripts.views.data import select
from scripts.views.data_parallel import duel_answer, why_missing, wrappers
from scripts.views.verdicts import against

NOT_OVERLAPPED = ("naive", "flat")
SLOWER = 1.01
"""Compute counts as slowed down if it takes longer by a larger ratio."""


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"time": time(table, rows), "traces": traces(table, rows)}


def time(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (a): the step against the previous two."""
    comparisons = duels(rows, ["overlapped"], ["flat"])
    if not comparisons:
        return Answer("(a) Step time", missing=why_missing(table, rows))
    own, naive = comparisons[0].first, fastest(select(rows, cell=comparisons[0].cell), ["naive"])
    over_naive = against(own, naive)
    return duel_answer(
        "(a) Step time",
        comparisons,
        ("overlapped", "flat"),
        more=[
            over_naive.sentence("it" if comparisons[0].speed.faster and over_naive.faster else "overlapped", "naive"),
            "The step takes {own[median]:ms}, including {own[exposed]:ms} of exposed communication.",
        ],
        reason=[
            "{difference}",
            "Hidden communication is not free: compute takes {stretch:times} as long as without communication, likely "
            "because NCCL's kernels occupy SMs (@sec-beyond_nccl).",
        ],
        stretch=own["stretch"] if own["stretch"] > SLOWER else None,
    )


def traces(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): the hidden share of communication in the drawn steps."""
    cell = traced_cell(rows)
    hidden = "{name} {row[hidden_share]:percent}"
    others = [say(hidden, name=name, row=fastest(cell, [name])) for name in NOT_OVERLAPPED]
    facts = Facts(own=fastest(cell, ["overlapped"]), others=[*filter(None, others)])
    return Answer(
        asked="(b) Traces",
        verdict=facts.say(
            "Overlapped hides {own[hidden_share]:percent} of its communication behind compute, {others:listing}."
        ),
        more=facts.say("One step of each was profiled on rank 0 ({own[cell]}; @fig-ddp_timelines)."),
        results="ddp_timelines",
        missing="No step was profiled: kernel traces need a GPU." if len(rows) else missing(table),
    )
