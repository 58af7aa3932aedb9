"""The largest allocations of a forward pass, for `memory_profiling`."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import Answer, Captioned, Facts
from scripts.rendering.grid import Columns, grid
from scripts.views.data import select, statistic

ASKED = {
    "timelines": "(a) Stages over time",
    "peaks": "(b) Peak memory",
    "autocast": "(c) Mixed precision",
    "residual": "(d) Residual stream",
    "largest": "(e) Largest allocations",
}
SHOWN = 8
"""Number of groups of allocations that are listed."""
GROUPS: Columns = {
    "operator": "{operator}",
    "line": "{place}",
    "code": "{text}",
    "MiB each": "{mib:.1f}",
    "number": "{number}",
    "kept": "{stays}",
}


def largest(cell: DataFrame, context: int) -> Answer:
    """Sub-question (e): the largest allocations of the forward pass."""
    rows = select(cell, metric="allocation")
    if not len(rows):
        return Answer(ASKED["largest"])
    layers = parse_size(cell["size"].iloc[0]).num_layers
    rows = rows.assign(
        # File and line of the stack frame.
        place=[source.partition(" ")[0].removeprefix("cs336_systems/") for source in rows["source"]],
        text=[code if len(code) < 60 else f"{code[:57]}…" for code in rows["code"]],
        mib=rows["mean"] / MIB,
        number=[per_block(int(n), layers) for n in rows["n"]],
        stays=[
            "yes" if statistic(cell, "median", metric="lifetime", rank=rank) is None else "no" for rank in rows["rank"]
        ],
    )
    alike = rows[rows["mean"] == rows["mean"].iloc[0]]
    facts = Facts(row=rows.iloc[0], operators=list(alike["operator"]), context=context)
    return Answer(
        asked=ASKED["largest"],
        verdict=facts.say(
            "The largest, {row[mib]:MiB} each, come from {operators:listing} ({row[label]}, fp32, context {context})."
        ),
        more=facts.say("They are allocated at {places:listing}.", places=list(dict.fromkeys(alike["place"]))),
        results=Captioned(
            grid(rows.head(SHOWN), GROUPS, text_columns=3),
            f"The largest allocations of the forward pass with a graph ({cell['label'].iloc[0]}, fp32, context "
            f"{context}), grouped by operator, line (in the measured commit) and size. Number: per block × blocks; "
            "kept: for the backward pass.",
        ),
    )


def per_block(number: int, layers: int) -> str:
    """A number of tensors as per block × blocks + the rest."""
    each, rest = divmod(number, layers)
    return (f"{each} × {layers}" + (f" + {rest}" if rest else "")) if each else str(rest)
