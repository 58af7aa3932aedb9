"""Answers of `memory_profiling` on single tensors: the largest allocations, and what one block saves."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import Answer, Captioned, Facts, count, say, tell
from scripts.rendering.grid import Columns, grid
from scripts.views.block_memory import block_cells, contributors, rows_of, too_much, totals
from scripts.views.closed_forms import FLASH
from scripts.views.data import last, ratio, select, statistic
from scripts.views.units import BYTE, GIB

ASKED = {
    "timelines": "(a) Stages over time",
    "peaks": "(b) Peak memory",
    "autocast": "(c) Mixed precision",
    "residual": "(d) Residual stream",
    "largest": "(e) Largest allocations",
}
SHOWN = 8
"""Groups of allocations that are listed."""
GROUPS: Columns = {
    "operator": "{operator}",
    "line": "{place}",
    "its text": "{text}",
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
    kept = select(rows, category=of.ACTIVATIONS)
    facts = Facts(row=rows.iloc[0], operators=list(alike["operator"]), shown=min(SHOWN, len(rows)), kept=len(kept))
    return Answer(
        asked=ASKED["largest"],
        verdict=facts.say("The largest take {row[mib]:MiB} each and are made at {row[place]} ({row[operator]})."),
        more=facts.say("{groups} have that size: {operators:listing}.", groups=count(len(alike), "group")),
        evidence=Captioned(
            grid(rows.head(SHOWN), GROUPS, text_columns=3),
            f"Groups of largest allocations in the forward pass with a graph, fp32, context {context}; number: per "
            "block × blocks.",
        ),
        reason=facts.say(
            "The stack traces of the {shown} largest groups point to {places:listing}. Of {groups}, {kept} are kept "
            "for the backward pass ({size:GiB}); the others are released within a block. In the backward pass "
            "autograd's own threads allocate, in which no Python runs, so there are no traces.",
            places=list(dict.fromkeys(rows["place"][:SHOWN])),
            groups=count(len(rows), "group"),
            size=float((kept["n"] * kept["mean"]).sum()) / GIB,
        ),
        details=Captioned(grid(rows[SHOWN:], GROUPS, text_columns=3), "The other groups recorded.", long=True),
    )


def per_block(number: int, layers: int) -> str:
    """A number of tensors as per block × blocks + the rest."""
    each, rest = divmod(number, layers)
    return (f"{each} × {layers}" + (f" + {rest}" if rest else "")) if each else str(rest)


def block(table: DataFrame) -> dict[str, Answer]:
    """Sub-question (f): what one block saves, and the gradients of its backward pass."""
    cells = block_cells(table)
    asked = "(f) Saved by one block", "(f) A block's gradients"
    if not len(cells):
        return {"saved": Answer(asked[0]), "gradients": Answer(asked[1])}
    context = int(cells["context"].max())
    longest = select(cells, context=context)
    full = longest.iloc[0]
    most = last(select(rows_of(table, full), metric="saved").sort_values("mean"))
    sizes = {(row["precision"], row["attention"]): row["saved"] for _, row in longest.iterrows()}
    plain, flash, low = (sizes.get(key) for key in (("fp32", "plain"), ("fp32", "flash"), ("bf16", "plain")))
    extra = too_much(cells)
    exact = (cells["gradients"] - cells["expected"]).abs().dropna() < BYTE
    facts = Facts(full=full, context=context, more=ratio(plain, flash), extra=extra["extra"].max())
    return {
        "saved": Answer(
            asked=asked[0],
            verdict=facts.say(
                "A block of {full[label]} saves {full[saved]:MiB} at context {context} ({full[precision]}, "
                "{full[attention]}); {most[mean] / full[saved]:percent} is {operator}'s.",
                most=most,
                operator=None if most is None else most["operator"] or FLASH,
            ),
            more=facts.say("Plain attention saves {more:times} as much as FlashAttention."),
            evidence=Captioned(
                contributors(table, longest),
                f"The largest contributors to what one block saves for backward in each cell, context {context}.",
            ),
            reason=say(
                "Attention's weights grow with the square of the context. FlashAttention saves one number per row "
                "of scores instead.",
                "Under autocast a block with plain attention saves {ratio:times} what it saves in fp32: the "
                "softmax keeps its result in fp32, the product its copy in bf16.",
                "Autocast casts the normalized input anew for each linear layer that takes it: query, key and "
                "value keep a copy each, and so do gate and up."
                if low
                else "",
                ratio=ratio(low, plain) if low and plain and low > plain else None,
            ),
            details=[
                "block_saved",
                Captioned(totals(cells), "What one block saves and the gradients that it makes, MiB."),
            ],
        ),
        "gradients": Answer(
            asked=asked[1],
            verdict=facts.say(
                "A block's backward pass makes {full[gradients]:MiB} of gradients at context {context}"
                + tell(bool(exact.all()), ", to the byte as expected.", ", not all as expected.")
            ),
            more=facts.say("{full[weights]:MiB} for the weights, {full[input]:MiB} for the block's input."),
            reason=facts.say(
                "Expected: 4 bytes per weight, and batch × context × d_model × 4 for the input, "
                "{full[expected]:MiB} together, in both precisions; it holds in {cells}.",
                facts.say(
                    "In {cells} ({where:listing}) the pass leaves {extra:MiB} more allocated than its gradients, "
                    "likely a library's workspace.",
                    cells=count(len(extra), "cell"),
                    where=[
                        f"{row['precision']}, {row['attention']}, context {row['context']}"
                        for _, row in extra.iterrows()
                    ],
                ),
                cells=count(int(exact.sum()), "cell"),
            ),
        ),
    }
