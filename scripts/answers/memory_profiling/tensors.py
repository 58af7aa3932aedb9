"""Answers of `memory_profiling` on single tensors: the largest allocations, and what one block saves."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Typst
from scripts.views.block_memory import block_cells, contributors, rows_of, too_much, totals
from scripts.views.closed_forms import FLASH
from scripts.views.data import ratio, select, statistic
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


def largest(cell: DataFrame, context: int) -> Answer:
    """Sub-question (e): the largest allocations of the forward pass."""
    rows = select(cell, metric="allocation")
    if not len(rows):
        return Answer(ASKED["largest"], NOTHING)
    layers = parse_size(cell["size"].iloc[0]).num_layers
    body = []
    for _, row in rows.iterrows():
        per_block, rest = divmod(int(row["n"]), layers)
        number = (f"{per_block} × {layers}" + (f" + {rest}" if rest else "")) if per_block else str(rest)
        stays = "yes" if statistic(cell, "median", metric="lifetime", rank=row["rank"]) is None else "no"
        code = row["code"] if len(row["code"]) < 60 else f"{row['code'][:57]}…"
        body.append([row["operator"], place_of(row["source"]), code, f"{row['mean'] / MIB:.1f}", number, stays])
    first = rows.iloc[0]
    alike = rows[rows["mean"] == first["mean"]]
    kept = select(rows, category=of.ACTIVATIONS)
    header = ["operator", "line", "its text", "MiB each", "number", "kept"]
    caption = (
        f"Groups of largest allocations in the forward pass with a graph, fp32, context {context}; number: per block × "
        "blocks."
    )
    return Answer(
        asked=ASKED["largest"],
        verdict=say(
            "The largest take {size:MiB} each and are made at {place} ({operator}).",
            size=first["mean"] / MIB,
            place=place_of(first["source"]),
            operator=first["operator"],
        ),
        more=say(
            "{groups} have that size: {operators:listing}.",
            groups=count(len(alike), "group"),
            operators=list(alike["operator"]),
        ),
        evidence=[Captioned(Table(header, body[:SHOWN], text_columns=3), caption)],
        reason=say(
            "The stack traces of the {shown} largest groups point to {places:listing}. Of {groups}, {kept} are kept "
            "for the backward pass ({size:GiB}); the others are released within a block. In the backward pass "
            "autograd's own threads allocate, in which no Python runs, so there are no traces.",
            shown=min(SHOWN, len(rows)),
            places=list(dict.fromkeys(map(place_of, rows["source"][:SHOWN]))),
            groups=count(len(rows), "group"),
            kept=len(kept),
            size=float((kept["n"] * kept["mean"]).sum()) / GIB,
        ),
        details=[Captioned(Table(header, body, text_columns=3), "All groups that were recorded.", long=True)]
        if len(body) > SHOWN
        else [],
    )


def place_of(source: str) -> str:
    """File and line of a stack frame."""
    return source.partition(" ")[0].removeprefix("cs336_systems/")


def block(table: DataFrame) -> dict[str, Answer]:
    """Sub-question (f): what one block saves, and the gradients of its backward pass."""
    cells = block_cells(table)
    asked = "(f) Saved by one block", "(f) A block's gradients"
    if not len(cells):
        return {"saved": Answer(asked[0], NOTHING), "gradients": Answer(asked[1], NOTHING)}
    context = int(cells["context"].max())
    longest = select(cells, context=context)
    full = longest.iloc[0]
    saved = select(rows_of(table, full), metric="saved").sort_values("mean").tail(1)
    sizes = {(row["precision"], row["attention"]): row["saved"] for _, row in longest.iterrows()}
    plain, flash, low = (sizes.get(key) for key in (("fp32", "plain"), ("fp32", "flash"), ("bf16", "plain")))
    extra = too_much(cells)
    off = (cells["gradients"] - cells["expected"]).abs()
    known = off.dropna()
    return {
        "saved": Answer(
            asked=asked[0],
            verdict=say(
                "A block of {label} saves {size:MiB} at context {context} ({cell}); {share:percent} is {operator}'s.",
                label=full["label"],
                size=full["saved"],
                context=context,
                cell=f"{full['precision']}, {full['attention']}",
                share=saved["mean"].sum() / full["saved"],
                operator=next(iter(saved["operator"].replace("", FLASH)), None),
            ),
            more=say("Plain attention saves {more:times} as much as FlashAttention.", more=ratio(plain, flash)),
            evidence=[
                Captioned(
                    contributors(table, longest),
                    f"The largest contributors to what one block saves for backward in each cell, context {context}.",
                )
            ],
            reason=paragraph(
                say(
                    "Attention's weights grow with the square of the context. FlashAttention saves one number per row "
                    "of scores instead.",
                ),
                say(
                    "Under autocast a block with plain attention saves {ratio:times} what it saves in fp32: the "
                    "softmax keeps its result in fp32, the product its copy in bf16.",
                    ratio=ratio(low, plain) if low and plain and low > plain else None,
                ),
                Typst(
                    "Autocast casts the normalized input anew for each linear layer that takes it: query, key and "
                    "value keep a copy each, and so do gate and up."
                )
                if low
                else NOTHING,
            ),
            details=[
                "block_saved",
                Captioned(totals(cells), "What one block saves and the gradients that it makes, MiB."),
            ],
        ),
        "gradients": Answer(
            asked=asked[1],
            verdict=say(
                "A block's backward pass makes {size:MiB} of gradients at context {context}{as_expected}.",
                size=full["gradients"],
                context=context,
                as_expected=tell(
                    bool((known < BYTE).all()), Typst(", to the byte as expected"), Typst(", not all as expected")
                ),
            ),
            more=say(
                "{weights:MiB} for the weights, {input:MiB} for the block's input.",
                weights=full["weights"],
                input=full["input"],
            ),
            reason=paragraph(
                say(
                    "Expected: 4 bytes per weight, and batch × context × d_model × 4 for the input, {expected:MiB} "
                    "together, in both precisions; it holds in {cells}.",
                    expected=full["expected"],
                    cells=count(int((known < BYTE).sum()), "cell"),
                ),
                say(
                    "In {cells} ({where:listing}) the pass leaves {extra:MiB} more allocated than its gradients, "
                    "likely a library's workspace.",
                    cells=count(len(extra), "cell"),
                    where=[
                        f"{row['precision']}, {row['attention']}, context {row['context']}"
                        for _, row in extra.iterrows()
                    ],
                    extra=extra["extra"].max() if len(extra) else None,
                ),
            ),
        ),
    }
