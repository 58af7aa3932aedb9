"""Answers to `training_ladder`: how fast a model trains here, which optimizations matter, and the time of its parts
alone.
"""

from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.training_ladder import FIRST, FP8, LADDER, RUNGS, TOP
from cs336_systems.record.measurement import parse_samples
from cs336_systems.sizes import parse_size, size_name
from scripts.rendering.answer import (
    NOT_HERE,
    NOTHING,
    Answer,
    Answers,
    Captioned,
    Facts,
    Tables,
    choose,
    count,
    least_and_most,
    say,
)
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Tile, Typst, fixed_point, measured, milliseconds
from scripts.views.closed_forms import sized
from scripts.views.data import measured_machine, one, select
from scripts.views.training_ladder import (
    EXACT,
    SCATTER,
    SHAPE,
    WORTH,
    ends,
    fastest,
    floor_table,
    italic,
    ladders,
    losses,
    needed,
    out_of_memory,
    rung_table,
    worth_doing,
    wrapped_cell,
    wrapped_table,
)
from scripts.views.verdicts import HOST_BOUND, against

PICTURES = ["fastest_step", "ladder"]
"""The first page shows the first of these that is drawn."""
YARDSTICK = (
    "The sum is a yardstick, not a lower bound: in the step the update may overlap the backward pass, and the clock "
    "may differ."
)
NEEDS_GPU = "Not shown: on a CPU, steps only check that the code works."
RUNG: Columns = {
    "": "{label}",
    "batch": "{batch_size} × {context}",
    "rung": "{title}",
    "step / ms": "{step:.2f}",
    "p20–p80": "{p20:.2f}–{p80:.2f}",
    "steps": "{n:.0f}",
    "busy / ms": "{device_busy:.2f}",
    "launches": "{launches:.0f}",
    "× parts": "{over:.2f}",
    "MFU / %": "{mfu:.1f}",
    "J": "{energy:.1f}",
    "peak / GiB": "{peak_memory:GiB}",
    "set-up / s": "{setup:.1f}",
}
SIZES: Columns = {
    "": {"": "{label}", "batch": "{batch_size} × {context}", "rung": "{title}"},
    "fastest step / ms": {"median": "{step:sig}", "p20–p80": "{p20:sig}–{p80:sig}"},
    "parts / ms": {"sum": "{floor:sig}", "p20–p80": "{floor_p20:sig}–{floor_p80:sig}", "× parts": "{over:.2f}"},
    " ": {"MFU / %": "{mfu:.1f}", "tokens/s": "{tokens:.0f}", "mJ/token": "{millijoules:.2g}"},
}
WRAPPED: Columns = {
    "": "{label}",
    "batch": "{processes} × {batch_size} × {context}",
    "step": "{title}",
    "CUDA graph": "{replayed}",
    "ms": "{step:sig}",
    "p20–p80": "{p20:.0f}–{p80:.0f}",
    "steps": "{n:.0f}",
    "tokens/s": "{tokens:.0f}",
    "peak / GiB": "{peak_memory:GiB}",
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = tables["training_ladder"]
    rungs = rung_table(table)
    missing = NEEDS_GPU if len(rungs) and not rungs["gpu"].any() else NOT_HERE
    rungs = rungs[rungs["gpu"] != ""].assign(mfu=lambda rows: 100 * rows["utilization"])
    extremes = ends(rungs)
    on_gpu = {
        "sizes": sizes(rungs, extremes),
        "advice": advice(table, rungs, extremes),
        "several": several(table),
    }
    return {
        "fastest": how_fast(table, rungs, extremes, missing),
        **(on_gpu if len(rungs) else {}),
        "learning": learning(table),
        "measured": len(rungs) > 0,
        "ends": extremes,
        "pictures": PICTURES if extremes else [],
    }


def tiles(section: Answers) -> list[Tile]:
    """The fastest step of the largest model."""
    if not section["ends"]:
        return []
    ladder = section["ends"][-1]
    best, begin = fastest(ladder), ladder.iloc[0]
    meaning = say(
        "the fastest bf16 step of {model} at {best[batch_size]} × {best[context]} tokens: {best[utilization]:percent} "
        "of the peak, {begin[step] / best[step]:times} as fast as the first version that fits ({begin[title]})",
        model=sized(best),
        best=best,
        begin=begin,
    )
    return [Tile(milliseconds(best["step"]), meaning)] if meaning else []


def how_fast(table: DataFrame, rungs: DataFrame, extremes: list[DataFrame], missing: str) -> Answer:
    """The fastest step of the largest model, next to its first one."""
    best, begin = (fastest(extremes[-1]), extremes[-1].iloc[0]) if extremes else (None, None)
    lost = out_of_memory(table, extremes[-1]) if extremes else []
    machine, parts = measured_machine({"": table}), floor_of(table, best)
    facts = Facts(best=best, begin=begin, machine=machine, parts=parts, lost=italic(lost), **steady_state(best))
    return Answer(
        asked="How fast",
        verdict=facts.say(
            "One {machine} trains {best[label]} at {best[tokens]:whole} tokens/s: {best[step]:ms} per step, "
            "{best[utilization]:percent} of the bf16 peak."
        )
        or facts.say("One {machine} trains {best[label]} at {best[tokens]:whole} tokens/s: {best[step]:ms} per step."),
        more=facts.say(
            "This step ({best[batch_size]} × {best[context]} tokens) is {begin[step] / best[step]:times} as fast as "
            f"the first version{' that fits' if lost else ''} (_{{begin[title]}}_).",
        ),
        reason=facts.say(
            "The step is timed in steady state, at {watts:whole} W.",
            "The first steps after warm-up, likely on a cooler GPU, take {first}.",
            "Only the first {cool:whole} steps were timed, on a cool GPU; later steps, at the power limit, are slower.",
            "Timed alone in the same job (@fig-ladder), the parts of a bf16 step take {parts[floor]:ms}: matmuls "
            "{parts[matmuls]:ms}, attention {parts[attention]:ms}, the update {parts[update]:ms}, and norms and the "
            "rest {parts[norms and elementwise]:ms} (estimated from their bytes and a copy's speed).",
            "{best[label]} runs out of memory with {lost:listing}.",
        ),
        results=PICTURES if extremes else (),
        details=Captioned(
            grid(rungs, RUNG, text_columns=3),
            "Medians of every rung of every cell. Parts: the components of a bf16 or FP8 step, timed alone. MFU: FLOPs "
            "of matmuls (without the embedding) and causal attention relative to the dense bf16 peak, even in fp32. J: "
            "energy of a step. Set-up: building the model and running its first steps, with compilation and capture.",
        ),
        missing=missing,
    )


def steady_state(best: Series | None) -> dict[str, Any]:
    """The power of a step in W, if it was timed in steady state, like its energy, and its first steps, if they are
    shorter; of an older row, which has only the first steps, their number (`cool`).
    """
    if best is None or not measured(best["first_steps"]):
        return {"watts": None, "first": None, "cool": None if best is None else best["n"]}
    first = milliseconds(best["first_steps"])
    faster = best["first_steps"] < best["step"] and first != milliseconds(best["step"])
    return {"watts": 1e3 * best["energy"] / best["step"], "first": first if faster else None, "cool": None}


def floor_of(table: DataFrame, row: Series | None) -> Series | None:
    """The parts of a step timed alone, next to a rung."""
    if row is None:
        return None
    return one(floor_table(table), **{name: row[name] for name in SHAPE})


def sizes(rungs: DataFrame, extremes: list[DataFrame]) -> Answer:
    """The fastest step of each cell, and the sum of its parts alone."""
    cells = list(ladders(rungs))
    best = DataFrame(map(fastest, cells), columns=rungs.columns)
    best = best.assign(millijoules=1e3 * best["joules"])
    spans = {name: least_and_most(best[name].astype(float)) for name in ("over", "utilization")}
    facts = Facts(**spans, cells=count(len(best), "cell"))
    single, alone = len(best) == 1, sum(len(ladder) == 1 for ladder in cells)
    return Answer(
        asked="Against its parts" if single else "All sizes",
        verdict=facts.say("The fastest bf16 step takes {over:span times} the time of its parts alone.")
        if single
        else facts.say(
            "The fastest bf16 step of each model and batch reaches {utilization:span percent} of the bf16 peak "
            "({cells})."
        ),
        results=Captioned(
            grid(best, SIZES, text_columns=3),
            "The fastest bf16 rung"
            + ("" if single else f" of each model and batch ({alone} of {len(best)} measured with one rung only)")
            + ", and the sum of a bf16 step's parts, timed alone (medians, p20 and p80 are each summed). MFU: share of "
            "the bf16 peak; mJ/token: from the driver's energy counter"
            + ("." if best["first_steps"].notna().any() else ", in a longer run with possibly slower steps."),
        ),
        reason=facts.say(
            "" if single else "These steps take {over:span times} the time of their parts alone.",
            YARDSTICK if spans["over"][0] < 1 else "",
            *(shape_of(row) for _, row in best.drop_duplicates("size").iterrows()),
            in_fp8(rungs, fastest(extremes[-1])) if extremes else "",
            "Others report 57 % of the peak (LLMQ, Qwen2.5 3B on one H100 @schultheis2026) and 39 % (torchtitan, Llama "
            "3.1 8B on eight H100s at 500 W, counting attention in full @torchtitan2024).",
        ),
    )


def shape_of(row: Series) -> Typst:
    """The shape of a model that is not one of the named sizes."""
    return say(
        '{name} has {shape.num_layers} blocks of {shape.num_heads} heads, $d_"model" = {shape.d_model}$, '
        '$d_"ff" = {shape.d_ff}$ and a vocabulary of {row[vocab_size]:whole}.',
        name=size_name(row["size"]) if ":" in row["size"] else "",
        shape=parse_size(row["size"]),
        row=row,
    )


def in_fp8(rungs: DataFrame, best: Series) -> Typst:
    """The time in FP8, which is not on the ladder, next to the fastest step of a cell."""
    return say(
        "FP8 (less accurate, not part of the ladder) trains {row[label]} ({row[batch_size]} × {row[context]} tokens) "
        "in {row[step]:ms} per step, {row[over]:times} the time of its own parts alone; bf16 takes {best[step]:ms}.",
        row=one(rungs, rung="fp8", **{name: best[name] for name in SHAPE}),
        best=best,
    )


def several(table: DataFrame) -> Answer:
    """The fastest step on several GPUs, under each wrapper."""
    on_gpus = wrapped_table(table)
    on_gpus, cell = on_gpus[on_gpus["gpu"] != ""], wrapped_cell(table)
    wrapped = cell[cell["rung"] != TOP.name]
    ranked = [row for _, row in wrapped.sort_values("step").iterrows()]
    best, second = [*ranked, None, None][:2]
    names = [row["title"] if row["title"].isupper() else f"the {row['title']}" for row in ranked]
    name, other = [*names, "", ""][:2]
    facts = Facts(row=best, name=name)
    step = "A step" if best is None or best["graph"] else "Without a CUDA graph, a step"
    lost = table[(table["part"] == "processes") & (table["status"] != "ok")]
    why = lost["message"].iloc[0] if len(lost) else "no step on several GPUs was run"
    return Answer(
        asked="On several GPUs",
        missing=f"Not measured: {why}.",
        verdict=NOTHING
        if best is None
        else against(best, second).sentence(name, other, f"({best['label']}, {best['processes']} GPUs, bf16)")
        or facts.say("Only {name} was measured ({row[label]}, {row[processes]} GPUs, bf16)."),
        more=facts.say(step + " with {name} takes {row[step]:ms} ({row[tokens]:whole} tokens/s)."),
        results=Captioned(
            grid(on_gpus.assign(replayed=on_gpus["graph"].map({True: "yes", False: "no"})), WRAPPED, text_columns=4),
            "Training steps on several GPUs, each with its own sequences; times are the slowest GPU's. No "
            "communication: the last rung on each GPU. Data-parallel wrapper: gradients are averaged in buckets during "
            "the backward pass, then each GPU updates every weight. Sharded optimizer: each GPU updates its share "
            "during the backward pass. FSDP: weights are sharded in fp32 and gathered in bf16, block by block; blocks "
            "are compiled, not fused. Steps with and without a CUDA graph are not compared.",
        ),
    )


def advice(table: DataFrame, rungs: DataFrame, extremes: list[DataFrame]) -> Answer:
    """The most useful rungs, by their saving over the previous step."""
    ladder = extremes[-1] if extremes else None
    order = [] if ladder is None else [row for _, row in worth_doing(ladder).iterrows()]
    must = [] if ladder is None else needed(table, ladder)
    start = 0 if must else 2
    left, bound = left_out(rungs, extremes)
    facts = Facts(
        size=None if ladder is None else ladder["label"].iloc[0],
        worth=WORTH,
        saved=[saving(row) for row in order[:start]],
        must=italic(must),
        instead=None if ladder is None else compiled_gain(ladder),
    )
    return Answer(
        asked="What to do first",
        missing=f"Not decided: no rung is known to save {100 * WORTH:.0f} % of the fastest bf16 step.",
        verdict=facts.say("For {size}, start with {must:listing}, the first version that fits.")
        or facts.say("For {size}, start with {order:listing}.", order=italic([row["title"] for row in order[:2]])),
        more=facts.say(
            "They save {saved:listing}.",
            "Then add each change that saves at least {worth:percent} of the fastest bf16 step: {order:listing}.",
            order=[say("_{row[title]}_ ({saved})", row=row, saved=saving(row)) for row in order[start:]],
        ),
        reason=facts.say(
            "Compiled blocks save {instead:ms} over eager blocks." if "fused" in {row["rung"] for row in order} else "",
            NOTHING if ladder is None else instead_of_the_compiler(ladder),
            "Removing a single rung from the full ladder of {size} costs {left:listing}.",
            "Without {bound:listing}, the step is host-bound.",
            "Without fused passes, blocks are compiled instead." if RUNGS["fused"].title in left else "",
            left=[say("{cost:ms} (_{title}_)", title=title, cost=cost) for title, cost in left.items()],
            bound=italic(bound),
        ),
    )


def saving(row: Series) -> Typst:
    """The time that a rung saves, over eager blocks if it replaces the compiler."""
    return say("{row[gain]:ms}" + (" over eager blocks" if row["rung"] == "fused" else ""), row=row)


def compiled_gain(ladder: DataFrame) -> float | None:
    """The time in ms that compiled blocks save over eager ones."""
    eager, compiled = one(ladder, rung="masters"), one(ladder, rung="compiled")
    return None if eager is None or compiled is None else eager["step"] - compiled["step"]


def instead_of_the_compiler(ladder: DataFrame) -> Typst:
    """Fused passes against the compiler, which they replace."""
    fused, compiled = one(ladder, rung="fused"), one(ladder, rung="compiled")
    if fused is None or compiled is None:
        return NOTHING
    return against(fused, compiled).sentence("the step with fused passes", "the step with compiled blocks")


def left_out(rungs: DataFrame, extremes: list[DataFrame]) -> tuple[dict[str, float], list[str]]:
    """The cost in ms of leaving each rung out of the last one, by its title, for the largest model, where decided; and
    the titles of those without which the step is host-bound.
    """
    if not extremes:
        return {}, []
    first = extremes[-1].iloc[0]
    cell = select(rungs, **{name: first[name] for name in SHAPE})
    last = one(cell, rung="overlap")
    if last is None:
        return {}, []
    without = {RUNGS[taken].title: row for _, row in cell.iterrows() if (taken := RUNGS[row["rung"]].without)}
    speeds = {title: against(row, last) for title, row in without.items()}
    costs = {title: without[title]["step"] - last["step"] for title, speed in speeds.items() if speed.faster is False}
    return costs, [title for title, speed in speeds.items() if speed.why == HOST_BOUND]


def learning(table: DataFrame) -> Answer:
    """Whether the rungs learn like fp32."""
    trained = losses(table)
    exact, fp8 = one(trained, rung=FIRST.name), one(trained, rung=FP8.name)
    others = trained[trained["rung"].isin(EXACT[1:])]
    alike = None
    if exact is not None and len(others):
        alike = bool(((others["loss"] - exact["loss"]).abs() <= SCATTER * exact["std"]).all())
    seeds = [] if exact is None else parse_samples(exact["samples"])
    same = fixed_point(seeds[0], 3, missing="") if seeds else None
    titles = [rung.title for rung in LADDER[1:] if rung.name in set(others["rung"])]
    facts = Facts(exact=exact, rungs=len(others), scatter=SCATTER, errors=least_and_most(others["error"]))
    return Answer(
        asked="Final loss",
        verdict=facts.say(
            choose(
                alike,
                "All {rungs} rungs after fp32 match fp32's final loss within the spread of its seeds.",
                "Not all {rungs} rungs after fp32 match fp32's final loss within the spread of its seeds.",
            )
        ),
        more=facts.say(
            "fp32 ends at {fp32} nat, the others at {ends}.",
            fp32=None if exact is None else f"{exact['loss']:.3f} ± {exact['std']:.3f}",
            ends=" to ".join(
                dict.fromkeys(fixed_point(others["loss"].agg(end), 3, missing="") for end in ("min", "max"))
            ),
        ),
        reason=facts.say(
            "A small model is trained on a Markov chain: in fp32 from {exact[n]:whole} seeds, on the "
            + ("other rungs" if len(others) == len(EXACT[1:]) else "rungs {others:listing}")
            + " from the first seed only. From that seed, fp32 ends at {same}.",
            "The spread is {scatter} standard deviations; ± is one.",
            "The first step's gradients differ from fp32's by {errors:span percent}.",
            "FP8 ends at {loss} nat, and its first gradients differ by {fp8[error]:percent}.",
            others=italic(titles),
            same=same,
            fp8=fp8,
            loss="" if fp8 is None else f"{fp8['loss']:.3f}",
        ),
    )
