"""Answers to `memory_profiling`: the memory of a step over time, its peak, and the tensors at the peak."""

from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.sizes import parse_size
from scripts.answers.memory_profiling.allocations import ASKED, largest
from scripts.answers.memory_profiling.block import block
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, count, say, tell
from scripts.rendering.grid import grid
from scripts.rendering.markup import fixed_point, measured, with_unit
from scripts.views.data import PRECISIONS, first, ratio, reason, select
from scripts.views.memory import FOLLOWED, compared_context, contexts, parts, peak_gib, profiled
from scripts.views.units import GIB

TRAINED = {"mode": "train_step", "precision": "fp32"}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    table = profiled(tables["memory_profile"])
    plain = select(table, attention="plain")
    context = compared_context(plain)
    skipped = next(iter(select(table, metric=WHOLE_CELL, status="skipped")["message"]), "")
    missing = f"Not measured: {skipped}." if skipped else "Not measured in both precisions for every kind of step."
    found = {name: Answer(asked, missing=missing) for name, asked in ASKED.items()}
    if len(plain):
        found["residual"] = residual(plain, context)
    if context is not None:
        found |= {
            "timelines": timelines(select(plain, context=context, **TRAINED), context),
            "peaks": peaks(table, plain),
            "autocast": autocast(plain, context),
            "largest": largest(select(plain, mode="forward", precision="fp32", context=context), context),
        }
    row = first(select(table, metric="peak_allocated"))
    model = say("{row[label]} at batch {row[batch_size]}", row=row)
    return {**found, **block(tables["block_memory"]), "model": model}


def timelines(cell: DataFrame, context: int) -> Answer:
    """Sub-question (a): the stages of the training step."""
    ends = select(cell, metric="stage_end").pivot(index="stage", columns="category", values="mean") / GIB
    ends = ends.reindex(columns=list(dict.fromkeys([*ends, of.ACTIVATIONS, of.GRADIENTS])))
    ends["all"] = ends.sum(axis=1)
    still = not select(cell, metric="stage_events", stage=of.OPTIMIZER)["mean"].sum()
    loss, backward = (ends.loc[stage] if stage in ends.index else None for stage in (of.LOSS, of.BACKWARD))
    lower = loss is not None and backward is not None and backward["all"] < loss["all"]
    change, size = ("lower", "smaller") if lower else ("higher", "larger")
    facts = Facts(loss=loss, backward=backward, context=context)
    return Answer(
        asked=ASKED["timelines"],
        verdict=tell(
            still,
            "Forward and backward are easy to tell apart; the optimizer allocates nothing and is not visible.",
            "Forward, backward and optimizer are easy to tell apart.",
        ),
        more=facts.say(
            f"Saved activations grow to {{loss[{of.ACTIVATIONS}]:GiB}} until backward begins. They are then released "
            f"layer by layer while the gradients grow to {{backward[{of.GRADIENTS}]:GiB}} (fp32, context "
            f"{{context}})."
        ),
        evidence="memory_timelines",
        reason=facts.say(
            f"In @fig-memory_timelines the training step is {change} at the end of backward ({{backward[all]:GiB}}) "
            f"than at its beginning ({{loss[all]:GiB}}): the gradients, which replace the activations, are {size}.",
            tell(still, "Fused AdamW updates in place.", ""),
            "Under `no_grad` nothing is saved, so inference is flat except for temporaries.",
        ),
    )


def peaks(table: DataFrame, plain: DataFrame) -> Answer:
    """Sub-question (b): peaks by context and kind of step."""
    lengths = contexts(plain)
    fp32 = select(plain, **TRAINED)
    fits = {length: size for length in lengths if (size := peak_gib(fp32, context=length)) is not None}
    at_peak = {length: parts(select(fp32, context=length)) for length in fits}
    late = [length for length, here in at_peak.items() if here[of.GRADIENTS] > here[of.ACTIVATIONS]]
    flash = select(table, attention="flash", metric="peak_allocated", mode="train_step")
    return Answer(
        asked=ASKED["peaks"],
        verdict=say(
            "A training step in fp32 peaks at {sizes:listing} at context {lengths:listing}.",
            sizes=[with_unit(size, "GiB") for size in fits.values()],
            lengths=list(map(str, fits)),
        ),
        more=say(
            "At {lost:listing} it runs out of memory.",
            *(
                say(
                    "With FlashAttention it fits at {row[context]} in {row[precision]}: {size:GiB}.",
                    row=row,
                    size=row["mean"] / GIB,
                )
                for _, row in flash.iterrows()
            ),
            lost=[str(length) for length in lengths if "memory" in reason(select(fp32, context=length))],
        ),
        evidence=Captioned(
            grid(
                DataFrame([peaks_at(select(plain, context=length), length) for length in lengths]),
                {
                    "context": "{context}",
                    **{
                        f"{precision} / GiB": {name: f"{{{precision} {mode}}}" for mode, name in FOLLOWED.items()}
                        for precision in PRECISIONS
                    },
                },
                text_columns=0,
            ),
            "Peak memory of a single step with plain attention; OOM: out of memory.",
        ),
        reason=say(
            "In fp32 at context {late:listing} the peak is reached late in backward, when most gradients exist and few "
            "activations are left, so it hardly depends on the context.",
            "In fp32 at context {early:listing} it is reached at the beginning of backward, when all activations "
            "exist.",
            late=list(map(str, late)),
            early=[str(length) for length in fits if length not in late],
        ),
    )


def peaks_at(rows: DataFrame, context: int) -> dict[str, Any]:
    """The peaks at one context in GiB, or why there are none."""
    line: dict[str, Any] = {"context": context}
    for precision in PRECISIONS:
        for mode in FOLLOWED:
            cell = select(rows, precision=precision, mode=mode)
            lost = "OOM" if "memory" in reason(cell) else "n/m"
            line[f"{precision} {mode}"] = fixed_point(peak_gib(cell), missing=lost)
    return line


def autocast(plain: DataFrame, context: int) -> Answer:
    """Sub-question (c): the same under autocast."""
    peak = {
        (mode, length): [peak_gib(plain, mode=mode, context=length, precision=name) for name in PRECISIONS]
        for mode in FOLLOWED
        for length in contexts(plain)
    }
    rises = [low > full for full, low in peak.values() if measured(full) and measured(low)]
    before, after = peak["train_step", context]
    forward = select(plain, mode="forward", context=context)
    full, low = (parts(select(forward, precision=precision)) for precision in PRECISIONS)
    facts = Facts(context=context, copies=low[of.WEIGHT_COPIES], rises=sum(rises), cells=count(len(rises), "cell"))
    return Answer(
        asked=ASKED["autocast"],
        verdict=facts.say(
            "Autocast {changes} a training step's peak by {size:GiB} at context {context}.",
            changes="raises" if (after or 0.0) > (before or 0.0) else "lowers",
            size=abs((after or 0.0) - (before or 0.0)),
        ),
        more=facts.say(
            "It holds bf16 copies of the weights ({copies:GiB}), while saved activations shrink only to "
            "{share:percent} of fp32's.",
            "The peak rises in {rises} of {cells}.",
            share=ratio(low[of.ACTIVATIONS], full[of.ACTIVATIONS]),
        ),
        evidence="memory_at_peak",
        reason=say(
            "@fig-memory_at_peak shows that weights, gradients and AdamW's moments stay in fp32, as do the residual "
            "stream, norms and softmax. The copies live until autocast's context ends, also under `no_grad`; in "
            "training the graph needs them for the gradients of the layers' inputs."
        ),
    )


def residual(plain: DataFrame, context: int | None) -> Answer:
    """Sub-question (d): one activation of the residual stream."""
    row = plain.iloc[0]
    shape, batch = parse_size(row["size"]), int(row["batch_size"])
    sizes = {length: residual_bytes(shape, batch, length) / MIB for length in contexts(plain)}
    quoted = context or max(sizes)
    found = select(plain, metric="residual_tensors", mode="forward", context=quoted, precision="fp32")
    others = [
        say("{size:MiB} at {length}", size=size, length=length) for length, size in sizes.items() if length != quoted
    ]
    facts = Facts(context=quoted, batch=batch, others=others, size=sizes[quoted], d_model=shape.d_model)
    return Answer(
        asked=ASKED["residual"],
        verdict=facts.say("One tensor takes {size:MiB} at context {context}."),
        more=facts.say("Batch × context × d_model × 4 bytes: {batch} × {context} × {d_model} × 4 / 2#super[20]."),
        reason=facts.say(
            "At other contexts: {others:listing}.",
            "The forward pass makes {number} tensors of exactly this size; {added} of them are the stream itself "
            "(two sums per block).",
            number=int(found["mean"].sum()) or None,
            added=int(select(found, operator="add")["mean"].sum()) or None,
        ),
    )
