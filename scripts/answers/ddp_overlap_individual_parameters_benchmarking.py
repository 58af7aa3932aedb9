"""Answers to `ddp_overlap_individual_parameters_benchmarking`: all-reduces that start during the backward pass."""

from pandas import DataFrame

from scripts.rendering.answer import Answer, Answers, Facts, Tables
from scripts.views.comparison import duels, fastest, traced_cell
from scripts.views.comparison_tables import missing
from scripts.views.data import select
from scripts.views.data_parallel import duel_answer, why_missing, wrappers
from scripts.views.verdicts import against

WRAPPERS = {"naive": ["naive"], "flat": ["flat"], "overlapped": ["overlapped"]}
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
    return duel_answer(
        "(a) Step time",
        comparisons,
        ("overlapped", "flat"),
        more=[
            against(own, naive).sentence("overlapped", "naive"),
            "The step takes {own[median]:ms}, including {own[exposed]:ms} of exposed communication.",
        ],
        reason=[
            "{difference}",
            "Hidden communication is not free: the step's compute takes {stretch:times} as long as without it, likely "
            "because NCCL's kernels occupy SMs (@sec-beyond_nccl).",
        ],
        stretch=own["stretch"] if own["stretch"] > SLOWER else None,
    )


def traces(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): the hidden share of communication in the drawn steps."""
    facts = Facts(**{name: fastest(traced_cell(rows), names) for name, names in WRAPPERS.items()})
    return Answer(
        asked="(b) Traces",
        verdict=facts.say(
            "Overlapped hides {overlapped[hidden_share]:percent} of its communication behind compute, naive "
            "{naive[hidden_share]:percent}."
        ),
        more=facts.say("The flat wrapper hides {flat[hidden_share]:percent} (one step each, rank 0, {flat[cell]})."),
        results="ddp_timelines",
        missing="No step was profiled: a trace of kernels needs a GPU." if len(rows) else missing(table),
    )
