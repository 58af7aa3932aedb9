"""Answers to `benchmarking_script`: step times, host overhead, spread, and the effect of warm-up."""

from math import nan
from typing import Any

from pandas import DataFrame, MultiIndex, Series

from cs336_systems.accounting.transformer import parameters
from cs336_systems.compare.speed import HOST_BOUND
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import (
    Answer,
    Answers,
    Captioned,
    Facts,
    Tables,
    choose,
    count,
    least_and_most,
    median_of,
    say,
)
from scripts.rendering.grid import NONE, Columns, grid
from scripts.rendering.markup import Table, mean_std
from scripts.views.data import MODES, PHASES, first, last, reason, reference_context, select, small_to_large
from scripts.views.spread import WIDE
from scripts.views.steps import most_complete, per_launch, steady, step_table, utilization
from scripts.views.verdicts import RULE

NOTICEABLE = 0.05
"""A first timed step counts as different if it exceeds every other step of its run by more than this share."""
CELL = ["size", "label", "vocab_size", "context", "precision"]
TIMES: Columns = {
    "": {"size": "{shown}", "weights / M": "{weights:.0f}", "precision": "{precision}"},
    "mean ± std / ms": {name: f"{{{name}}}" for name in ("inference", "forward", "backward")}
    | {"AdamW": "{optimizer}"},
    "the step": {
        "median / ms": "{step:.1f}{partial}",
        "busy / %": "{percent:.1f}{host_bound:star}",
        "MFU / %": "{utilization:share}",
    },
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = tables["end_to_end"]
    known = steady(step_table(table))
    known["utilization"] = [utilization(step, step["mode"], step["step"]) for _, step in known.iterrows()]
    eager = select(known, compiled=False, attention="plain")
    return {
        "times": times(table, eager),
        "host": host_overhead(known),
        "variability": variability(known),
        "warmup": warmup(table),
        "steps": int(eager["steps"].max()) if len(eager) else None,
        "warmups": int(eager["warmup"].max()) if len(eager) else None,
    }


def times(table: DataFrame, eager: DataFrame) -> Answer:
    """Sub-question (b): forward, backward and optimizer of every size."""
    context = reference_context(select(eager, mode="train_step"))
    trained = select(eager, mode="train_step", context=context)
    on_device = trained[~trained["host_bound"].astype(bool)]
    small, large = (end(select(trained, precision="fp32")) for end in (first, last))
    plain = select(table, compiled=False, attention="plain", cold_start=False)
    bound = [
        say("{slow} of {all} in {precision}", slow=int(rows["host_bound"].sum()), all=len(rows), precision=precision)
        for precision, rows in select(eager, mode="train_step").dropna(subset="busy").groupby("precision", sort=False)
    ]
    facts = Facts(small=small, large=large, context=context, bound=bound)
    return Answer(
        asked="(b) Step times",
        verdict=facts.say(
            "A training step takes {small[step]:ms} ({small[label]}) to {large[step]:ms} ({large[label]}) in fp32 at "
            "context {context}."
        ),
        more=say(
            "The backward pass takes {ratio:span times} as long as the forward pass; AdamW takes {share:span percent} "
            "of the step ({cells}).",
            ratio=least_and_most(on_device["backward"] / on_device["forward"]),
            share=least_and_most(on_device["optimizer"] / on_device["step"]),
            cells=count(len(on_device), "device-bound cell" if on_device["busy"].notna().any() else "cell"),
        ),
        results=Captioned(
            times_table(plain, eager, context),
            f"Mean ± std of the timed steps, at context {context} unless noted.",
            legend={
                "busy / %": "Busy: the share of the step in which the device works",
                "*": "*: host-bound",
                "†": "†: of the measured phases only",
                NONE: f"{NONE}: not measured",
            },
        ),
        reason=facts.say(
            "Of the eager training steps with plain attention (all contexts), {bound:listing} are host-bound: the "
            "device waits for launches and is busy for less than {share:percent} of the step.",
            share=HOST_BOUND,
        ),
    )


def host_overhead(known: DataFrame) -> Answer:
    """Sub-question (b): the host's time for a launch, and the launches of a training step."""
    launched = per_launch(known)
    slow = select(launched[launched["host_bound"].astype(bool)], compiled=False)
    steps = select(launched, mode="train_step", attention="plain")
    eager, compiled = (select(steps, compiled=way) for way in (False, True))
    largest = last(select(eager, context=reference_context(eager), precision="bf16"))
    both = eager.merge(compiled, on=["size", "context", "precision"], suffixes=("", "_compiled"))
    return Answer(
        asked="(b) Host overhead",
        verdict=say(
            "Eager host-bound steps take {each:µs} per launch ({cells}).",
            each=slow["host"].median(),
            cells=median_of(len(slow), "cell"),
        ),
        more=say(
            "A bf16 step of {row[label]} at context {row[context]} has {row[launches]:whole} launches.",
            "With torch.compile, {share:span percent} of the launches remain ({cells}); a CUDA graph needs only one.",
            row=largest,
            share=least_and_most(both["launches_compiled"] / both["launches"]),
            cells=count(len(both), "cell"),
        ),
        results="host_costs",
        missing="Not measured: kernel launches are counted on GPUs only.",
    )


def variability(known: DataFrame) -> Answer:
    """Sub-question (b): whether repeated steps scatter."""
    steps = known[known["std"].notna()]
    variation, bound = steps["std"] / steps["mean"], steps["host_bound"].astype(bool)
    on_gpu = bool(steps["busy"].notna().any())
    chosen = variation if bound.all() else variation[~bound]
    wide, typical = int((chosen > WIDE).sum()), chosen.median()
    return Answer(
        asked="(b) Variability",
        verdict=say(
            ("Steps " if not on_gpu else "Host-bound steps " if bound.all() else "Device-bound steps ")
            + ("vary a lot" if typical > WIDE else "mostly vary little" if wide else "vary little")
            + ": the std is {typical:percent} of the mean ({cells}).",
            typical=typical,
            cells=median_of(len(chosen), "cell"),
        ),
        more=say(
            "It exceeds {limit:percent} in {wide} of these cells.",
            "In host-bound cells, it is {typical:percent} ({cells}).",
            limit=WIDE,
            wide="all" if wide == len(chosen) else wide or "none",
            typical=None if bound.all() else variation[bound].median(),
            cells=median_of(int(bound.sum()), "cell"),
        ),
        reason=say(
            choose(
                on_gpu,
                "Other work on the host can delay launches and lengthen host-bound steps, so these are not compared.",
                "Other programs on the processor can lengthen steps.",
            ),
            "Ratios of times are ratios of medians unless stated otherwise.",
            RULE,
        ),
    )


def warmup(table: DataFrame) -> Answer:
    """Sub-question (c): the first steps of a process."""
    cold = select(step_table(table), cold_start=True, compiled=False, attention="plain")
    cold = cold[cold["first_step"].notna()]
    at_once, later = cold[cold["warmup"] == 0], cold[cold["warmup"] > 0]
    if not len(later) or not len(at_once):
        missing = "Not measured: the number of warm-up steps was not varied."
        return Answer("(c) Warm-up", missing=missing)
    slower, late = (rows[rows["first_step"] > (1 + NOTICEABLE) * slowest_later(rows)] for rows in (at_once, later))
    asked = [f"{end:.0f}" for end in least_and_most(at_once["device_allocations"].dropna()) if end == end]
    facts = Facts(late=len(late), runs=count(len(later), "run"), asked=" to ".join(dict.fromkeys(asked)))
    return Answer(
        asked="(c) Warm-up",
        verdict=say(
            "Without warm-up, the first step takes {extra:span ms} longer than the median ({row[precision]}, context "
            "{row[context]})."
            if len(slower)
            else "Without warm-up, the first step takes {first:span ms}, later ones up to {most:ms}: no clear effect.",
            row=at_once.iloc[0],
            extra=least_and_most(at_once["first_step"] - at_once["step"]),
            first=least_and_most(at_once["first_step"]),
            most=slowest_later(at_once).max(),
        ),
        more=facts.say(
            "After one warm-up step, the first timed step takes {row[first_step]:ms}, later ones up to {most:ms}.",
            row=later.iloc[0],
            most=slowest_later(later).max(),
        )
        if len(later) == 1
        else facts.say(
            choose(
                not len(late),
                "One warm-up step is enough: after it, no first timed step exceeds the slowest later step by more than "
                "{limit:percent} ({runs}).",
                "After warm-up, the first timed step still exceeds the slowest later step by more than {limit:percent} "
                "in {late} of {runs} ({where:listing}).",
            ),
            limit=NOTICEABLE,
            where=[f"{step['label']}, w = {step['warmup']}" for _, step in late.iterrows()],
        ),
        results=Captioned(
            warmup_table(cold),
            say(
                "Forward + backward after w warm-up steps, each w in a new process; context {row[context]}, "
                "{row[precision]}.",
                row=first(cold),
            ),
        ),
        reason=facts.say(
            "Without warm-up, the allocator requests memory from the driver {asked} times during the timed steps; "
            "after warm-up, " + choose(not later["device_allocations"].max(), "never.", "up to {later:whole} times."),
            choose(
                bool(asked) if len(slower) else None,
                "Other likely causes, not timed separately: CUDA loads each kernel's module at its first launch, and "
                "cuBLAS creates its workspace and picks an algorithm for each shape.",
                "Likely causes: thread start-up, setup of matmul kernels for each shape, page faults on new memory.",
            ),
            "Means also differ between processes; _first − median_ compares steps of one process.",
            later=later["device_allocations"].max(),
        ),
    )


def slowest_later(runs: DataFrame) -> Series:
    """The longest step of each run after its first, or the median if only this was recorded."""
    return runs["samples"].map(lambda steps: max(steps[1:], default=nan)).fillna(runs["step"])


def times_table(table: DataFrame, eager: DataFrame, reference: int | None) -> Table:
    """Mean ± std of each phase, the device's share and the utilization of the whole step, by size and precision.

    For a size not measured at the reference context, its longest context.
    """
    contexts = {
        size: reference if reference in set(rows["context"]) else rows["context"].max()
        for size, rows in table.groupby("size")
    }
    rows = table[table["context"] == table["size"].map(contexts)]
    rows = rows[rows["warmup"] == rows.groupby(CELL)["warmup"].transform("max")]
    lines = small_to_large(rows[CELL].drop_duplicates())
    whole = most_complete(eager).set_index(CELL)[["mode", "step", "busy", "host_bound", "utilization"]]
    lines = lines.join(whole, on=CELL)
    lines["percent"] = 100 * lines["busy"]
    lines["partial"] = lines["mode"].map({"forward": "†", "forward_backward": "†"}).fillna("")
    timed = {phase: latest(rows[rows["mode"] != "inference"], phase) for phase in PHASES}
    timed["inference"] = latest(select(rows, mode="inference"), "forward")
    cells: Any = lines[CELL].to_dict("records")
    lost = [reason(select(rows, **cell), mode="train_step") for cell in cells]
    for name, phase in timed.items():
        pairs = phase.reindex(MultiIndex.from_frame(lines[CELL]))
        texts = Series(mean_std(list(zip(pairs["mean"], pairs["std"], strict=True))), lines.index, dtype=object)
        lines[name] = texts.where(texts != "", NONE if name == "inference" else Series(lost, lines.index, dtype=object))
    lines["shown"] = [
        row["label"] if row["context"] == reference else f"{row['label']} at {row['context']}"
        for _, row in lines.iterrows()
    ]
    lines["weights"] = [
        parameters(parse_size(size), vocabulary) / 1e6
        for size, vocabulary in zip(lines["size"], lines["vocab_size"], strict=True)
    ]
    return grid(lines, TIMES)


def latest(rows: DataFrame, phase: str) -> DataFrame:
    """Mean and std of a phase in each cell, from the most complete measured kind of step."""
    timed = select(rows, metric=phase)
    timed = timed.sort_values("mode", key=lambda modes: modes.map(list(MODES).index), kind="stable")
    return timed.drop_duplicates(CELL, keep="last").set_index(CELL)[["mean", "std"]]


def warmup_table(cold: DataFrame) -> Table:
    """Mean ± std of the timed steps, and the excess of the first one over the median, by warm-up steps."""
    warmups = sorted(cold["warmup"].unique())
    lines = cold.drop_duplicates("size")[["size", "label"]].set_index("size")
    for w in warmups:
        rows = select(cold, warmup=w).set_index("size").reindex(lines.index)
        lines[f"mean{w}"] = [text or NONE for text in mean_std(list(zip(rows["mean"], rows["std"], strict=True)))]
        lines[f"extra{w}"] = rows["first_step"] - rows["step"]
    means = {f"w = {w}": f"{{mean{w}}}" for w in warmups}
    columns = {"mean ± std of the timed steps / ms": means}
    columns["first − median / ms"] = {f"w = {w}": f"extra{w}" for w in warmups}
    return grid(lines, {"size": "{label}", **columns})
