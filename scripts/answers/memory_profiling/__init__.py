"""Answers to `memory_profiling`: the memory of a step over time, its peak, and the tensors that make it up."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.transformer import residual_bytes, state_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.sizes import SIZES, parse_size
from scripts.answers.memory_profiling.tensors import ASKED, block, largest
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Typst, fixed, with_unit
from scripts.views.data import PRECISIONS, ratio, reason, select, statistic
from scripts.views.memory import FOLLOWED, LOOKS, compared_context, contexts, parts, peak_gib, profiled
from scripts.views.units import GIB


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    everything = tables["memory_profile"]
    table = profiled(everything)
    plain = select(table, attention="plain")
    context = compared_context(plain)
    skipped = next(iter(select(table, metric=WHOLE_CELL, status="skipped")["message"]), "")
    missing = f"Not measured: {skipped}." if skipped else "Not measured in both precisions for every kind of step."
    found = {name: Answer(asked, NOTHING, missing=missing) for name, asked in ASKED.items()}
    if len(plain):
        found["residual"] = residual(plain, context)
    if context is not None:
        fp32, bf16 = (select(plain, precision=precision) for precision in PRECISIONS)
        forward = select(fp32, mode="forward", context=context)
        found |= {
            "timelines": timelines(select(fp32, mode="train_step", context=context), context),
            "peaks": peaks(table, fp32),
            "autocast": autocast(fp32, bf16, context),
            "largest": largest(forward, context),
        }
    return {**found, **block(tables["block_memory"]), "model": model(table), "needs": needs(table)}


def model(table: DataFrame) -> Typst:
    """The model that was followed."""
    row = table.iloc[0] if len(table) else None
    return NOTHING if row is None else say("{label} at batch {batch}", label=row["label"], batch=int(row["batch_size"]))


def needs(table: DataFrame) -> Typst:
    """What a step holds whatever the context, and the sizes that it rules out."""
    if not len(table):
        return NOTHING
    row = table.iloc[0]
    state = {
        name: state_bytes("train_step", shape, int(row["vocab_size"]))
        for name, shape in {**SIZES, row["label"]: parse_size(row["size"])}.items()
    }
    too_large = [name for name, size in state.items() if 0 < row["gpu_memory"] < size]
    return paragraph(
        say(
            "A training step holds 16 bytes per weight besides activations: {state:GiB} for {label}; autocast adds 2 "
            "for each weight of a linear layer.",
            state=state[row["label"]] / GIB,
            label=row["label"],
        ),
        say("So {sizes:listing} can never be trained on this GPU alone.", sizes=too_large),
    )


def timelines(cell: DataFrame, context: int) -> Answer:
    """Sub-question (a): the stages of the training step."""
    events = {row["stage"]: int(row["mean"]) for _, row in select(cell, metric="stage_events").iterrows()}
    ends = select(cell, metric="stage_end")

    def held(category: str, stage: str) -> float | None:
        return ratio(statistic(ends, "mean", category=category, stage=stage), GIB)

    def after(stage: str) -> float:
        return float(select(ends, stage=stage)["mean"].sum() / GIB)

    body = [
        [stage, str(number), *(fixed([after(stage), held(of.ACTIVATIONS, stage) or 0, held(of.GRADIENTS, stage) or 0]))]
        for stage, number in events.items()
    ]
    header = ["stage", "allocations and frees", "in all", of.ACTIVATIONS, of.GRADIENTS]
    table = Table(header, body, groups=[("", 2), ("at the stage's end / GiB", 3)])
    still = events.get(of.OPTIMIZER) == 0
    return Answer(
        asked=ASKED["timelines"],
        verdict=tell(
            still,
            Typst("Forward and backward can be told apart; the optimizer allocates nothing, so it cannot."),
            Typst("Forward, backward and optimizer can be told apart."),
        ),
        more=say(
            "Saved activations climb to {saved:GiB} until backward begins; they are then released layer by layer while "
            "the gradients grow to {gradients:GiB} (fp32, context {context}).",
            saved=held(of.ACTIVATIONS, of.LOSS),
            gradients=held(of.GRADIENTS, of.BACKWARD),
            context=context,
        ),
        evidence=["memory_timelines"],
        reason=paragraph(
            say(
                "In @fig-memory_timelines the training step is {change} at the end of backward ({after:GiB}) than at "
                "its beginning ({before:GiB}): the gradients that replace the activations are {size}.",
                change="lower" if after(of.BACKWARD) < after(of.LOSS) else "higher",
                size="smaller" if after(of.BACKWARD) < after(of.LOSS) else "larger",
                after=after(of.BACKWARD),
                before=after(of.LOSS),
            ),
            tell(still, Typst("Fused AdamW updates in place."), NOTHING),
            Typst("Under `no_grad` nothing is saved, so inference is flat but for temporaries."),
        ),
        details=[Captioned(table, "The stages of the training step in the figure.")],
    )


def peaks(table: DataFrame, fp32: DataFrame) -> Answer:
    """Sub-question (b): peaks by context and kind of step."""
    plain = select(table, attention="plain")
    lengths = contexts(plain)
    body = []
    columns = {
        (precision, mode): peak_column(select(plain, precision=precision), mode, lengths)
        for precision in PRECISIONS
        for mode in FOLLOWED
    }
    body = [[str(length), *(column[place] for column in columns.values())] for place, length in enumerate(lengths)]
    groups = [("", 1), *((f"{precision} / GiB", len(FOLLOWED)) for precision in PRECISIONS)]
    trained = {length: peak_gib(fp32, mode="train_step", context=length) for length in lengths}
    fits = {length: size for length, size in trained.items() if size is not None}
    late = [
        length
        for length in fits
        if (here := parts(select(fp32, mode="train_step", context=length)))[of.GRADIENTS] > here[of.ACTIVATIONS]
    ]
    lost = [length for length in lengths if "memory" in reason(select(fp32, mode="train_step", context=length))]
    flash = select(table, attention="flash", metric="peak_allocated", mode="train_step")
    return Answer(
        asked=ASKED["peaks"],
        verdict=say(
            "A training step in fp32 peaks at {sizes:listing} at context {lengths:listing}.",
            sizes=[with_unit(size, "GiB") for size in fits.values()],
            lengths=[str(length) for length in fits],
        ),
        more=paragraph(
            say("At {lost:listing} it runs out of memory.", lost=[str(length) for length in lost]),
            *(
                say(
                    "With FlashAttention it fits at {context} in {precision}: {size:GiB}.",
                    context=int(row["context"]),
                    precision=row["precision"],
                    size=row["mean"] / GIB,
                )
                for _, row in flash.iterrows()
            ),
        ),
        evidence=[
            Captioned(
                Table(["context", *list(FOLLOWED.values()) * len(PRECISIONS)], body, text_columns=0, groups=groups),
                "Peak memory with plain attention, of a single step; OOM: out of memory.",
            )
        ],
        reason=paragraph(
            say(
                "At context {late:listing} the peak is reached late in backward, when most gradients are there and few "
                "activations are left, so it hardly depends on the context.",
                late=[str(length) for length in late],
            ),
            say(
                "What differs there is mostly the allocator's rounding ({rounding:listing}).",
                rounding=[
                    say("{size:GiB}", size=ratio(rounding(fp32, length), GIB))
                    for length in (late if len(late) > 1 else [])
                ],
            ),
            say(
                "At {early:listing} it is reached at the beginning of backward, when all activations are there.",
                early=[str(length) for length in fits if length not in late],
            ),
        ),
    )


def rounding(fp32: DataFrame, length: int) -> float | None:
    """The allocator's rounding at the peak of a training step, bytes."""
    cell = {"mode": "train_step", "context": length, "category": "allocator's rounding"}
    return statistic(fp32, "mean", metric="at_peak", **cell)


def peak_column(rows: DataFrame, mode: str, lengths: list[int]) -> list[str]:
    """The peak at each context in GiB, or why there is none."""
    cells = [select(rows, mode=mode, context=length) for length in lengths]
    texts = fixed([peak_gib(cell) for cell in cells])
    lost = ["OOM" if "memory" in reason(cell) else "n/m" for cell in cells]
    return [text or why for text, why in zip(texts, lost, strict=True)]


def autocast(fp32: DataFrame, bf16: DataFrame, context: int) -> Answer:
    """Sub-question (c): the same under autocast."""
    before, after = (peak_gib(rows, mode="train_step", context=context) or 0.0 for rows in (fp32, bf16))
    shown = {
        (mode, precision): parts(select(rows, mode=mode, context=context))
        for mode in FOLLOWED
        for precision, rows in zip(PRECISIONS, (fp32, bf16), strict=True)
    }
    pairs = [
        (peak_gib(fp32, mode=mode, context=length), peak_gib(bf16, mode=mode, context=length))
        for mode in FOLLOWED
        for length in contexts(bf16)
    ]
    differences = [low - full for full, low in pairs if full is not None and low is not None]
    full, low = (shown["forward", precision] for precision in PRECISIONS)
    groups = [("", 1), *((title, 2) for title in FOLLOWED.values())]
    body = [[name, *(f"{sizes[name]:.2f}" for sizes in shown.values())] for name in LOOKS]
    return Answer(
        asked=ASKED["autocast"],
        verdict=say(
            "Autocast {changes} a training step's peak by {size:GiB} at context {context}.",
            changes="raises" if after > before else "lowers",
            size=abs(after - before),
            context=context,
        ),
        more=paragraph(
            say(
                "It holds bf16 copies of the weights ({copies:GiB}), while saved activations shrink only to "
                "{share:percent} of fp32's.",
                copies=low[of.WEIGHT_COPIES],
                share=ratio(low[of.ACTIVATIONS], full[of.ACTIVATIONS]),
            ),
            say(
                "The peak rises in {rises} of {cells}.",
                rises=sum(difference > 0 for difference in differences),
                cells=count(len(differences), "cell"),
            ),
        ),
        evidence=["memory_at_peak"],
        reason=Typst(
            "By @fig-memory_at_peak weights, gradients and AdamW's moments stay in fp32, as do residual stream, norms "
            "and softmax. The copies live until autocast's context ends, under `no_grad`, too; then the graph needs "
            "them for the gradients of the layers' inputs."
        ),
        details=[
            Captioned(
                Table(["memory at the peak", *PRECISIONS * len(FOLLOWED)], body, groups=groups),
                f"What the memory at the peak is for, GiB, at context {context}.",
            )
        ],
    )


def residual(plain: DataFrame, context: int | None) -> Answer:
    """Sub-question (d): one activation of the residual stream."""
    row = plain.iloc[0]
    shape, batch = parse_size(row["size"]), int(row["batch_size"])
    sizes = {length: residual_bytes(shape, batch, length) / MIB for length in contexts(plain)}
    quoted = context or max(sizes)
    found = select(plain, metric="residual_tensors", mode="forward", context=quoted, precision="fp32")
    return Answer(
        asked=ASKED["residual"],
        verdict=say("One tensor takes {size:MiB} at context {context}.", size=sizes[quoted], context=quoted),
        more=say(
            "Batch × context × d_model × 4 bytes: {batch} × {context} × {d_model} × 4 / 2#super[20].",
            batch=batch,
            context=quoted,
            d_model=shape.d_model,
        ),
        reason=paragraph(
            say(
                "At other contexts: {others:listing}.",
                others=[
                    say("{size:MiB} at {length}", size=size, length=length)
                    for length, size in sizes.items()
                    if length != quoted
                ],
            ),
            say(
                "The forward pass makes {number} tensors of exactly this size; {added} of them are the stream itself, "
                "two sums per block.",
                number=int(found["mean"].sum()) or None,
                added=int(select(found, operator="add")["mean"].sum()) or None,
            ),
        ),
    )
