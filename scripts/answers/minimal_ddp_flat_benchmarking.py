"""Answers to `minimal_ddp_flat_benchmarking`: one all-reduce of all gradients against one for each."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import FLOOR
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.views.comparison import duels
from scripts.views.data_parallel import (
    BASELINE,
    across_cells,
    difference,
    elsewhere,
    every_row,
    stacked_cells,
    told,
    why_untold,
    wrappers,
)

WRAPPERS = {"naive": ["naive"], "flat": ["flat"]}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer."""
    table, rows = tables["data_parallel"], wrappers(tables)
    found = duels(rows, ["flat"], ["naive"])
    asked = found[0] if found else None
    more = 0.0 if asked is None else (asked.first["peak_memory"] - asked.other["peak_memory"]) / 1024
    steps = Captioned(across_cells(table, rows, BASELINE | WRAPPERS), "Median step and exposed communication, ms.")
    every = every_row(table, rows, [FLOOR, *WRAPPERS]) if len(rows) else None
    return {
        "flat": Answer(
            asked="One all-reduce",
            verdict=NOTHING if asked is None else told(asked, "flat", "naive", where=True),
            more=NOTHING
            if asked is None
            else paragraph(
                say(
                    "It exposes {flat:ms} of communication, naive {naive:ms}.",
                    flat=asked.first["exposed"],
                    naive=asked.other["exposed"],
                ),
                elsewhere(found),
            ),
            evidence=["ddp_stack"] if stacked_cells(rows) else [steps],
            reason=NOTHING
            if asked is None
            else paragraph(
                difference(asked.first, asked.other, "flat", "naive"),
                say(
                    "It makes one call in place of {calls}; the added compute copies the gradients into one tensor.",
                    calls=int(asked.other["messages"]) if asked.other["messages"] > 0 else None,
                ),
                say(
                    "That tensor adds {more:GiB} to the peak.",
                    more=more if more > 0 else None,
                ),
                say("Neither wrapper communicates before the backward pass is over."),
            ),
            details=[
                steps,
                *([Captioned(every, "Naive and flat in every cell measured.", long=True)] if every else []),
            ],
            missing=why_untold(table, rows),
        )
    }
