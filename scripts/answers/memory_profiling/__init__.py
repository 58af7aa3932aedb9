"""Answers to `memory_profiling`: the memory of a step over time, its peak, and the tensors at the peak."""

from itertools import product
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.transformer import residual_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.measure import memory_timeline as of
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.sizes import parse_size
from scripts.answers.memory_profiling.allocations import ASKED, largest
from scripts.answers.memory_profiling.block import block
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, choose, count, say
from scripts.rendering.grid import grid
from scripts.rendering.markup import fixed_point, with_unit
from scripts.views.data import PRECISIONS, first, largest_model, ratio, reason, select, statistic
from scripts.views.memory import FOLLOWED, compared_context, contexts, parts, peak_gib
from scripts.views.units import GIB

TRAINED = {"mode": "train_step", "precision": "fp32"}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = largest_model(tables["memory_profile"])
    plain = select(table, attention="plain")
    context = compared_context(plain)
    skipped = next(iter(select(table, metric=WHOLE_CELL, status="skipped")["message"]), "")
    missing = f"Not measured: {skipped}." if skipped else "Not shown: some steps were not run in both precisions."
    answered = {name: Answer(asked, missing=missing) for name, asked in ASKED.items()}
    if len(plain):
        answered["residual"] = residual(plain, context)
    if context is not None:
        answered |= {
            "timelines": timelines(select(plain, context=context, **TRAINED), context),
            "peaks": peaks(table, plain),
            "autocast": autocast(plain, context),
            "largest": largest(select(plain, mode="forward", precision="fp32", context=context), context),
        }
    row = first(select(table, metric="peak_allocated"))
    model = say("{row[label]} at batch {row[batch_size]}", row=row)
    return {**answered, **block(tables["block_memory"]), "model": model}


def timelines(cell: DataFrame, context: int) -> Answer:
    """Sub-question (a): the stages of the training step."""
    still = not select(cell, metric="stage_events", stage=of.OPTIMIZER)["mean"].sum()
    grown = {
        category: statistic(cell, "mean", metric="stage_end", stage=stage, category=category)
        for category, stage in ((of.ACTIVATIONS, of.LOSS), (of.GRADIENTS, of.BACKWARD))
    }
    return Answer(
        asked=ASKED["timelines"],
        verdict=choose(
            still,
            "Forward and backward are easy to tell apart; the optimizer allocates nothing, so its stage is flat.",
            "Forward, backward and optimizer are easy to tell apart.",
        ),
        more=say(
            "Saved activations grow to {activations / gib:GiB} by the time backward begins. They are then released "
            "layer by layer while the gradients grow to {gradients / gib:GiB} (fp32, context {context}; "
            "@fig-memory_timelines).",
            activations=grown[of.ACTIVATIONS],
            gradients=grown[of.GRADIENTS],
            gib=GIB,
            context=context,
        ),
        results="memory_timelines",
        reason=say(
            "Fused AdamW updates in place." if still else "",
            "Under `no_grad` nothing is saved, so fp32 inference is flat except for temporaries.",
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
    columns = {
        f"{name} / GiB": {title: f"{{{name} {mode}}}" for mode, title in FOLLOWED.items()} for name in PRECISIONS
    }
    return Answer(
        asked=ASKED["peaks"],
        verdict=say(
            "Training {label} in fp32 peaks at {sizes:listing} at context {lengths:listing}.",
            label=plain["label"].iloc[0],
            sizes=[with_unit(size, "GiB") for size in fits.values()],
            lengths=list(map(str, fits)),
        ),
        more=say(
            "At {lost:listing} it runs out of memory.",
            *(
                say(
                    "With our attention, context {row[context]} fits in {row[precision]} ({row[mean] / gib:GiB}).",
                    row=row,
                    gib=GIB,
                )
                for _, row in flash.iterrows()
            ),
            lost=[str(length) for length in lengths if "memory" in reason(select(fp32, context=length))],
        ),
        results=Captioned(
            grid(DataFrame([peaks_at(plain, length) for length in lengths]), {"context": "{context}", **columns}, 0),
            f"Peak memory of a single step of {plain['label'].iloc[0]} with plain attention; OOM: out of memory.",
        ),
        reason=say(
            "In fp32 at context {late:listing}, memory peaks late in backward, when nearly all gradients and hardly "
            "any activations exist" + (", so the peak hardly depends on the context." if len(late) > 1 else "."),
            "In fp32 at context {early:listing}, it peaks at the beginning of backward, when nearly all activations "
            "exist.",
            late=list(map(str, late)),
            early=[str(length) for length in fits if length not in late],
        ),
    )


def peaks_at(plain: DataFrame, context: int) -> dict[str, Any]:
    """The peaks at one context in GiB, or why there are none."""
    line: dict[str, Any] = {"context": context}
    for precision, mode in product(PRECISIONS, FOLLOWED):
        cell = select(plain, context=context, precision=precision, mode=mode)
        lost = "OOM" if "memory" in reason(cell) else "n/m"
        line[f"{precision} {mode}"] = fixed_point(peak_gib(cell), missing=lost)
    return line


def autocast(plain: DataFrame, context: int) -> Answer:
    """Sub-question (c): the same under autocast."""
    peak = select(plain, metric="peak_allocated").pivot(index=["mode", "context"], columns="precision", values="mean")
    peak = peak.dropna()
    rises = peak["bf16"] > peak["fp32"]
    full, low = (parts(select(plain, mode="forward", context=context, precision=name)) for name in PRECISIONS)
    facts = Facts(
        context=context, copies=low[of.WEIGHT_COPIES], rises=int(rises.sum()), cells=count(len(rises), "cell")
    )
    return Answer(
        asked=ASKED["autocast"],
        verdict=facts.say(
            "Autocast {changes} the peak of {label}'s training step by {size:GiB} at context {context}.",
            label=plain["label"].iloc[0],
            changes="raises" if rises["train_step", context] else "lowers",
            size=abs(peak["bf16"] - peak["fp32"])["train_step", context] / GIB,
        ),
        more=facts.say(
            "It keeps bf16 copies of the weights ({copies:GiB}); saved activations are {share:percent} of their fp32 "
            "size.",
            "The peak rises in {rises} of {cells}.",
            share=ratio(low[of.ACTIVATIONS], full[of.ACTIVATIONS]),
        ),
        reason="Weights, gradients and AdamW's moments stay in fp32, as do the residual stream, norms and softmax. The "
        "copies live until autocast's context ends, even under `no_grad`; in training, the graph needs them for the "
        "gradients of the layers' inputs.",
    )


def residual(plain: DataFrame, context: int | None) -> Answer:
    """Sub-question (d): one activation of the residual stream."""
    row = plain.iloc[0]
    shape, batch = parse_size(row["size"]), int(row["batch_size"])
    quoted = context or max(contexts(plain))
    facts = Facts(context=quoted, batch=batch, size=residual_bytes(shape, batch, quoted) / MIB, d_model=shape.d_model)
    return Answer(
        asked=ASKED["residual"],
        verdict=facts.say(
            "One tensor of {label}'s residual stream takes {size:MiB} at context {context} (fp32).", label=row["label"]
        ),
        more=facts.say("Batch × context × d_model × 4 bytes: {batch} × {context} × {d_model} × 4 / 2#super[20]."),
    )
