"""Answers to `minimal_ddp_flat_benchmarking`: one all-reduce of all gradients against one for each."""

from scripts.rendering.answer import Answer, Answers, Tables
from scripts.views.comparison import duels
from scripts.views.data_parallel import duel_answer, why_missing, wrappers


def answers(tables: Tables) -> Answers:
    """The section's answer."""
    table, rows = tables["data_parallel"], wrappers(tables)
    comparisons = duels(rows, ["flat"], ["naive"])
    if not comparisons:
        return {"flat": Answer("One all-reduce", missing=why_missing(table, rows))}
    answer = duel_answer(
        "One all-reduce",
        comparisons,
        ("flat", "naive"),
        more=[
            "A flat step takes {own[median]:ms}, a naive step {other[median]:ms}.",
            "{elsewhere}",
        ],
        reason=[
            "_Flat_ exposes {own[exposed]:ms} of communication, _naive_ {other[exposed]:ms} ({own[cell]}).",
            "{difference}",
            "_Flat_ makes one call instead of {other[messages]:whole} and copies the gradients into one tensor.",
            "That tensor adds {own[peak_memory] - other[peak_memory]:gib} to peak memory.",
            "Neither wrapper communicates during the backward pass.",
        ],
    )
    return {"flat": answer}
