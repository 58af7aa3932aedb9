"""Answers to `minimal_ddp_flat_benchmarking`: one all-reduce of all gradients against one for each."""

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables
from scripts.views.comparison import duels
from scripts.views.data_parallel import (
    WITHOUT_COMMUNICATION,
    across_cells,
    difference,
    elsewhere,
    stacked_cells,
    why_untold,
    wrappers,
)

WRAPPERS = {"naive": ["naive"], "flat": ["flat"]}


def answers(tables: Tables) -> Found:
    """The section's answer."""
    table, rows = tables["data_parallel"], wrappers(tables)
    found = duels(rows, ["flat"], ["naive"])
    if not found:
        return {"flat": Answer("One all-reduce", missing=why_untold(table, rows))}
    flat, naive = found[0].first, found[0].other
    more = flat["peak_memory"] - naive["peak_memory"]
    steps = Captioned(
        across_cells(table, rows, WITHOUT_COMMUNICATION | WRAPPERS), "Median step and exposed communication, ms."
    )
    facts = Facts(flat=flat, naive=naive, more=more if more > 0 else None)
    answer = Answer(
        asked="One all-reduce",
        verdict=found[0].speed.sentence("flat", "naive", f"({found[0].cell})"),
        more=facts.say(
            "A step takes {flat[median]:ms}, naive {naive[median]:ms}.",
            "It exposes {flat[exposed]:ms} of communication, naive {naive[exposed]:ms}.",
            elsewhere(found),
        ),
        evidence=["ddp_stack"] if stacked_cells(rows) else [steps],
        reason=facts.say(
            difference(flat, naive, "flat", "naive"),
            "It makes one call in place of {naive[messages]:whole}; the added compute copies the gradients into "
            "one tensor.",
            "That tensor adds {more:gib} to the peak.",
            "Neither wrapper communicates before the backward pass is over.",
        ),
    )
    return {"flat": answer}
