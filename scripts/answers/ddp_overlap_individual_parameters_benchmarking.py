"""Answers to `ddp_overlap_individual_parameters_benchmarking`: gradients that travel during the backward pass."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import FLOOR
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.views.comparison import duels, fastest, traced_cell
from scripts.views.data_parallel import BASELINE, across_cells, difference, every_row, told, why_untold, wrappers

WRAPPERS = {"naive": ["naive"], "flat": ["flat"], "overlapped": ["overlapped"]}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"time": time(table, rows), "traces": traces(rows)}


def time(table: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (a): the step against the two before."""
    found, before = (duels(rows, ["overlapped"], [other]) for other in ("flat", "naive"))
    asked = found[0] if found else None
    every = every_row(table, rows, [FLOOR, *WRAPPERS]) if len(rows) else None
    if asked is None:
        return Answer("(a) Step time", NOTHING, missing=why_untold(table, rows))
    return Answer(
        asked="(a) Step time",
        verdict=told(asked, "overlapped", "flat", where=True),
        more=paragraph(
            *(told(duel, "overlapped", "naive") for duel in before[:1] if duel.cell == asked.cell),
            say(
                "The step takes {step:ms}, of which {exposed:ms} are exposed communication.",
                step=asked.first["median"],
                exposed=asked.first["exposed"],
            ),
        ),
        evidence=[
            Captioned(
                across_cells(table, rows, BASELINE | WRAPPERS),
                "Step and exposed communication in device-bound cells, medians; a star: percentiles 20 and 80 more "
                "than 5 % apart.",
            )
        ],
        reason=paragraph(
            difference(asked.first, asked.other, "overlapped", "flat"),
            say(
                "What is hidden is not free: next to communication the same compute takes {stretch:times} as long as "
                "without, likely because NCCL's kernels occupy SMs (@sec-beyond_nccl).",
                stretch=asked.first["stretch"] if asked.first["stretch"] > SLOWER else None,
            ),
        ),
        details=[Captioned(every, "Naive, flat and overlapped in every cell measured.", long=True)] if every else [],
        missing=why_untold(table, rows),
    )


SLOWER = 1.01
"""Compute that takes longer by a larger ratio is slowed down."""


def traces(rows: DataFrame) -> Answer:
    """Sub-question (b): what the drawn steps hide of their communication."""
    cell = traced_cell(rows)
    shares = {name: None if (row := fastest(cell, [name])) is None else row["hidden_share"] for name in WRAPPERS}
    return Answer(
        asked="(b) Traces",
        verdict=say(
            "Overlapped runs {overlapped:percent} of its communication next to compute, naive {naive:percent}.",
            **{name: shares[name] for name in ("overlapped", "naive")},
        ),
        more=say(
            "The flat wrapper hides {flat:percent} (one step each, rank 0, {cell}).",
            flat=shares["flat"],
            cell=cell["cell"].iloc[0] if len(cell) else None,
        ),
        evidence=["ddp_timelines"],
        missing="No step was profiled: a trace of kernels needs a GPU.",
    )
