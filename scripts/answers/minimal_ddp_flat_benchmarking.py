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
            "Its step takes {own[median]:ms}, naive's {other[median]:ms}.",
            "{elsewhere}",
        ],
        reason=[
            "Flat exposes {own[exposed]:ms} of communication, naive {other[exposed]:ms} ({own[cell]}).",
            "{difference}",
            "It makes one call instead of {other[messages]:whole}, and copies the gradients into one tensor.",
            "That tensor adds {own[peak_memory] - other[peak_memory]:gib} to the peak.",
            "Neither wrapper communicates before the backward pass is over.",
        ],
    )
    return {"flat": answer}
