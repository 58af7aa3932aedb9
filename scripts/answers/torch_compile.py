"""Answers to `torch_compile`: attention and the whole Transformer, compiled and eager."""

import math
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say
from scripts.rendering.markup import Table, Tile, Typst, fixed_point, listing, measured, times
from scripts.views.compiled_attention import grid_table, paired
from scripts.views.data import one, ratio, reason, select, size_order
from scripts.views.steps import PASSES, steady, step_table

STAGES = {
    "fp32": {"precision": "fp32", "compiled": False, "attention": "plain"},
    "bf16": {"precision": "bf16", "compiled": False, "attention": "plain"},
    "bf16, compiled": {"precision": "bf16", "compiled": True, "attention": "plain"},
    "bf16, our attention": {"precision": "bf16", "compiled": False, "attention": "flash"},
    "bf16, our attention, compiled": {"precision": "bf16", "compiled": True, "attention": "flash"},
}
"""One step after another, from fp32 to all together."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    steps = stages(steady(step_table(tables["end_to_end"])))
    return {
        "attention": attention(tables["attention"]),
        "model": model(tables["end_to_end"]),
        "together": together(steps),
        "stages": steps,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """All together, where it can be told."""
    steps = list(found["stages"].values())
    if len(steps) < 2 or steps[0]["host_bound"] or steps[-1]["host_bound"]:
        return []
    titles = list(found["stages"])
    meaning = f"the training step of {name_of(steps[0])}: {titles[-1]}, over {titles[0]}"
    return [Tile(times(steps[0]["step"] / steps[-1]["step"]), meaning, "gain of all together")]


def attention(table: DataFrame) -> Answer:
    """(a) Plain attention, eager next to compiled."""
    asked = "(a) Attention"
    if table["compiled"].nunique() < 2:
        return Answer(asked, NOTHING)
    pairs = paired(table)
    told = pairs[~pairs["host_bound"]]
    longest = select(told, sequence=told["sequence"].max())
    last = longest.iloc[-1] if len(longest) else None
    losses = int((told["gain"] < 1).sum())
    gain = longest["gain"].median()
    quick, slow = ("compiled", "eager") if gain > 1 else ("eager", "compiled")
    return Answer(
        asked=asked,
        verdict=say(
            "At {length} tokens {quick} attention is {gain:times} as fast as {slow} (median of {cells}).",
            length=int(last["sequence"]),
            quick=quick,
            slow=slow,
            gain=max(gain, 1 / gain),
            cells=count(len(longest), "head dimension"),
        )
        if last is not None
        else Typst("All compiled or eager cells are host-bound: no gain can be told."),
        more=paragraph(
            say(
                "It is slower in {losses} of {all}.",
                losses=losses or "none",
                all=count(len(told), "device-bound shape" if measured(pairs["eager_busy"].max()) else "shape"),
            ),
            say(
                "Its peak at d = {d} goes from {eager:GiB} to {compiled:GiB}.",
                d=int(last["d"]) if last is not None else None,
                eager=last["eager_peak"] / 1024 if last is not None else None,
                compiled=last["compiled_peak"] / 1024 if last is not None else None,
            ),
        ),
        evidence=[
            Captioned(
                grid_table(table, [False, True]),
                "Mean times of plain attention, eager and compiled, by head dimension; a star: host-bound.",
            )
        ],
        reason=paragraph(
            Typst(
                "The compiler fuses scaling and softmax, forward and backward, into one pass over the scores. The "
                "score "
                "matrix itself stays in memory: compiling does not change the algorithm."
            ),
            say(
                "In {cells} the device waits for the host, eager or compiled; there it works {work:times} as long "
                "eager "
                "as compiled (median).",
                cells=count(int(pairs["host_bound"].sum()), "shape") if pairs["host_bound"].any() else None,
                work=(pairs["eager_busy"] / pairs["compiled_busy"])[pairs["host_bound"]].median(),
            ),
        ),
        details=["attention_compiled"],
    )


def model(table: DataFrame) -> Answer:
    """(b) The whole model's training step, eager next to compiled, and when compiling has paid."""
    asked = "(b) The whole Transformer"
    rows = select(table, attention="plain", mode="train_step", cold_start=False)
    tried = select(rows, compiled=True)
    if not len(tried):
        return Answer(asked, NOTHING)
    context = int(tried["context"].max())
    rows = select(rows, context=context, warmup=int(tried["warmup"].max()))
    steps = step_table(rows)
    pairs = [pair for pair in pairs_of(steps, tried) if pair[0] is not None and pair[1] is not None]
    told = [pair for pair in pairs if not (pair[0]["host_bound"] or pair[1]["host_bound"])]
    return Answer(
        asked=asked,
        verdict=work_sentence(pairs) or step_sentence(told, pairs),
        more=paragraph(
            step_sentence(told, pairs) if work_sentence(pairs) else NOTHING,
            pays_sentence(told),
        ),
        evidence=[
            Captioned(
                model_table(rows, steps, tried),
                f"The training step up to each of its phases at context {context}, sums of the phases’ medians; a "
                f"star: "
                "host-bound. cost: the warm-up beyond as many settled steps; pays after: steps that save as much.",
            )
        ],
        reason=paragraph(
            say(
                "The compiler @ansel2024 fuses chains of element-wise operations and reductions (norms, rotary "
                "embeddings, "
                "the softmax with its mask, SwiGLU’s gate), so that their tensors cross memory once; matmuls are still "
                "the "
                "library’s, and AdamW is not compiled."
            ),
            say(
                "The eager step launches {fewer:times} as many kernels and copies (median), which matters where the "
                "host "
                "is slow.",
                fewer=middle([ratio(eager["launches"], compiled["launches"]) for eager, compiled in pairs]),
            ),
        ),
    )


def pairs_of(steps: DataFrame, tried: DataFrame) -> list[tuple[Any, Any]]:
    """The eager and the compiled step of every cell that was tried compiled; None where it was not measured."""
    found = []
    for size in size_order(tried):
        for precision in dict.fromkeys(select(tried, size=size)["precision"]):
            cell = {"size": size, "precision": precision}
            found.append((one(steps, compiled=False, **cell), one(steps, compiled=True, **cell)))
    return found


def middle(values: list[float | None]) -> float | None:
    """The median of what was measured."""
    known = [value for value in values if measured(value)]
    return float(Series(known).median()) if known else None


def work_sentence(pairs: list[tuple[Any, Any]]) -> Typst:
    """By how much compiling cuts what the device does, which the host has no part in."""
    parts = []
    for precision in ("bf16", "fp32"):
        gains = [
            ratio(eager["device_busy"], fast["device_busy"]) for eager, fast in pairs if eager["precision"] == precision
        ]
        parts.append(say("{gain:times} in {precision}", gain=middle(gains), precision=precision))
    shown = [part for part in parts if part]
    return (
        say("Compiling cuts the device’s work per training step by {gains} (medians).", gains=listing(shown))
        if shown
        else NOTHING
    )


def step_sentence(told: list[tuple[Any, Any]], pairs: list[tuple[Any, Any]]) -> Typst:
    """What it makes of the step itself, where that can be told."""
    gain = middle([eager["step"] / compiled["step"] for eager, compiled in told])
    if gain is None:
        return say("In none of {cells} the step can be told: all are host-bound.", cells=count(len(pairs), "cell"))
    quick, slow = ("compiled", "eager") if gain > 1 else ("eager", "compiled")
    kind = f"median of {count(len(told), 'cell')}"
    if len(told) < len(pairs):
        kind = f"{len(told)} of {len(pairs)} cells; the others are host-bound"
    return say(
        "The {quick} step is {gain:times} as fast as the {slow} one ({kind}).",
        quick=quick,
        slow=slow,
        gain=max(gain, 1 / gain),
        kind=Typst(kind),
    )


def pays_sentence(told: list[tuple[Any, Any]]) -> Typst:
    """What compiling the largest model costs."""
    eager, compiled = told[-1] if told else (None, None)
    cost = None if compiled is None else compile_seconds(compiled)
    pays = None if eager is None or compiled is None else steps_to_pay(cost, eager["step"], compiled["step"])
    return say(
        "For {cell} compiling costs {cost:s} and pays after {pays} steps.",
        cost=cost,
        cell=None if eager is None else f"{eager['label']} in {eager['precision']}",
        pays=pays,
    )


def model_table(rows: DataFrame, steps: DataFrame, tried: DataFrame) -> Table:
    """One line per model and precision."""
    body = []
    on_gpu = steps["device_busy"].notna().any()
    for eager, compiled in pairs_of(steps, tried):
        known = eager if eager is not None else compiled
        if eager is None or compiled is None:
            lost = select(rows, compiled=eager is not None)
            cell = known[["size", "precision"]] if known is not None else tried.iloc[0][["size", "precision"]]
            line = [str(select(tried, size=cell["size"])["label"].iloc[0]), cell["precision"]]
            body.append([*line, *[reason(select(lost, **dict(cell)))] * (2 * len(PASSES) + 2 + 3 * int(on_gpu))])
            continue
        line = [eager["label"], eager["precision"]]
        for title in PASSES:
            line += [f"{fixed_point(step[title])}{'*' if step['host_bound'] else ''}" for step in (eager, compiled)]
        if on_gpu:
            work = [step["device_busy"] for step in (eager, compiled)]
            line += [*map(fixed_point, work), fixed_point(ratio(*work), 2, "×")]
        cost = compile_seconds(compiled)
        pays = steps_to_pay(cost, eager["step"], compiled["step"])
        body.append([*line, fixed_point(cost, 0), "–" if cost is None else "never" if pays is None else str(pays)])
    header = ["size", "precision", *["eager", "compiled"] * len(PASSES)]
    groups = [("", 2), *((f"{title} / ms", 2) for title in PASSES)]
    if on_gpu:
        header, groups = [*header, "eager", "compiled", "ratio"], [*groups, ("device works / ms", 3)]
    return Table([*header, "cost / s", "pays after"], body, groups=[*groups, ("compiling", 2)], text_columns=2)


def compile_seconds(step: Series) -> float | None:
    """What compiling costs: the warm-up beyond the time that as many settled steps take, seconds."""
    warmup = step["warmup_seconds"]
    return max(0.0, warmup - step["warmup"] * step["step"] / 1e3) if measured(warmup) else None


def steps_to_pay(cost: float | None, eager: float, compiled: float) -> int | None:
    """After how many steps, of so many ms each, compiling has saved the seconds that it costs; None: never."""
    return math.ceil(1e3 * cost / (eager - compiled)) if cost is not None and compiled < eager else None


def stages(steps: DataFrame) -> dict[str, Series]:
    """The training steps of the largest model in which compiling and our attention were measured together."""
    trained = select(steps, mode="train_step")
    best = select(trained, compiled=True, attention="flash")
    if not len(best):
        return {}
    rows = select(trained, size=best.iloc[-1]["size"], context=best.iloc[-1]["context"])
    return {title: found.iloc[0] for title, wanted in STAGES.items() if len(found := select(rows, **wanted))}


def name_of(step: Series) -> str:
    """A step's model and context in words."""
    return f"{step['label']} at context {step['context']}"


def together(steps: Mapping[str, Series]) -> Answer:
    """All improvements of one training step on one device."""
    asked = "All together"
    if len(steps) < 2:
        return Answer(asked, NOTHING, missing="Not measured: compiling with our attention needs a GPU.")
    title, first = next(iter(steps.items()))
    fastest = min(steps, key=lambda each: steps[each]["step"])
    told = not (first["host_bound"] or steps[fastest]["host_bound"])
    body = [
        [
            each,
            f"{step['step']:.1f}{'*' if step['host_bound'] else ''}",
            fixed_point(100 * step["busy"], 0),
            fixed_point(utilization(step)),
            fixed_point(step["peak_memory"] / 1024),
            f"{first['step'] / step['step']:.2f}×" if not (first["host_bound"] or step["host_bound"]) else "–",
        ]
        for each, step in steps.items()
    ]
    header = ["training step", "median / ms", "device busy / %", "MFU / %", "peak / GiB", "gain"]
    where = name_of(first)
    return Answer(
        asked=asked,
        verdict=say(
            "{where} trains fastest in _{fastest}_: {gain:times} as fast as in _{title}_.",
            fastest=fastest,
            where=where,
            gain=first["step"] / steps[fastest]["step"] if told else None,
            title=title,
        )
        or say("Whether it gains cannot be told for {where}: a step is host-bound.", where=where),
        evidence=[Captioned(Table(header, body), f"The training step of {where}, medians; gain: over the first line.")],
    )


def utilization(step: Series) -> float | None:
    """FLOPs of the step's matmuls over its time and the GPU's dense peak, percent; None where no peak is known."""
    peak = gpu_of(step["gpu"])
    if peak is None:
        return None
    flops = step_flops(step["mode"], parse_size(step["size"]), step["vocab_size"], step["batch_size"], step["context"])
    return float(100 * flops / (peak.flops(step["precision"]) * step["step"] / 1e3))
