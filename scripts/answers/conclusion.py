"""How far the optimizations of this report take one training step, how it scales, and what to do on this machine."""

from collections.abc import Mapping
from math import nan
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.experiments.training_ladder import TOP
from cs336_systems.record.measurement import parse_samples
from scripts.rendering.answer import NOTHING, Answer, Captioned, Facts, Found, Tables, count, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst, percent
from scripts.views.comparison import contenders, device_bound, duels, fastest
from scripts.views.comparison_tables import missing
from scripts.views.data import PRECISIONS, first, last, select
from scripts.views.data_parallel import OURS, against_baseline
from scripts.views.fsdp import OURS as OUR_FSDP
from scripts.views.optimizer_sharding import UNSHARDED, memory, peaks
from scripts.views.scaling import PYTORCHS, scaling
from scripts.views.steps import step_table, utilization
from scripts.views.training_ladder import ends, needed, rung_table, worth_doing, wrapped_table
from scripts.views.training_ladder import fastest as fastest_rung

SHARDED_STATE = "sharded_symmetric_memory"
GRAPH = "compiled into one CUDA graph"
"""How data parallelism runs a compiled step on GPUs."""
WORK = ["size", "context", "batch_size", "vocab_size"]
"""The columns that must be equal in steps whose tokens are compared."""
CLIMB = (
    "With all improvements of @sec-training_ladder, a step of {top[label]} on one GPU goes from {begin[step]:ms} "
    "({begin[title]}) to {top[step]:ms}."
)
CHAIN: Columns = {
    "": {"": "{title}", "launch": "{launch}", "ranks": "{ranks}"},
    "step / ms": {"median": "{median:.1f}", "p20–p80": "{p20:.1f}–{p80:.1f}", "n": "{n:.0f}"},
    "device": {"busy / ms": "{busy:.1f}"},
    "all ranks": {"tokens/s": "{tokens:.0f}", "× first": "{gain:.2f}"},
    "of a device": {"MFU / %": "{utilization:.1f}", "peak / GiB": "{memory:sig}"},
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    wrappers = compared_wrappers(contenders(DataParallelTraining, tables["data_parallel"]))
    work = first(wrappers)
    steps = [] if work is None else [*one_device(tables, dict(work[WORK])), *several_devices(wrappers)]
    found, alone = scaling(tables), one_gpu(tables["training_ladder"])
    why = missing(tables["data_parallel"])
    why = "Cannot be decided: no steady, device-bound step without communication." if work is not None else why
    return {
        "helped": helped(DataFrame(steps), work, alone),
        "scaling": weak_scaling(found, wrappers, why),
        "advice": advice(tables, DataFrame(steps), found, alone),
    }


def compared_wrappers(rows: DataFrame) -> DataFrame:
    """The contenders of data parallelism in one setting: a device-bound setting, if possible compiled and in bf16."""
    told = device_bound(rows)
    if not len(told):
        return told
    order = told.assign(precision=told["precision"].map(PRECISIONS.index)).sort_values(["compiled", "precision"])
    best = told.loc[order.index[-1]]
    return select(told, compiled=best["compiled"], precision=best["precision"])


def step(row: Series, title: str, launch: str, ranks: int, busy: float, memory: float) -> dict[str, Any]:
    """A training step in one setting: `busy` is a device's busy time in ms, `memory` is in MiB; NaN if unknown.

    Added: `tokens` of all ranks per second; `told`, whether ratios may be formed from it: not on a CPU, which other
    programs share.
    """
    return {
        **row,
        "title": title,
        "launch": launch,
        "ranks": ranks,
        "busy": busy,
        "tokens": ranks * row["batch_size"] * row["context"] / row["median"] * 1e3,
        "told": bool(row["gpu"]) and not host_bound(row["median"], busy),
        "utilization": 100 * utilization(row, "train_step", row["median"]),
        "memory": memory / 1024,
        "gain": nan,
    }


def one_device(tables: Tables, work: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps of the same training on a single device: fp32, bf16, and compiled."""
    whole = {"mode": "train_step", "attention": "plain", **work}
    found = []
    for precision, title in (("fp32", "fp32"), ("bf16", "bf16 autocast")):
        cell = {"precision": precision, "compiled": False, "cold_start": False, **whole}
        timed = last(select(tables["end_to_end"], metric="step", **cell).sort_values("warmup"))
        known = last(select(step_table(tables["end_to_end"]), **cell).sort_values("warmup"))
        if timed is not None and known is not None:
            found.append(step(timed, title, "end_to_end", 1, known["device_busy"], known["peak_memory"]))
    profiles = select(tables["kernel_profile"], precision="bf16", compiled=True, **whole)
    for _, row in select(profiles, metric="step").iterrows():
        busy = select(profiles, metric="stage_busy")["median"].sum(min_count=1)
        found.append(step(row, "bf16 compiled", "kernel_profile", 1, busy, nan))
    return found


def several_devices(wrappers: DataFrame) -> list[dict[str, Any]]:
    """The step without communication, and our fastest step with it for each number of ranks.

    The device time of a profiled step is used for timed ones.
    """
    found: list[dict[str, Any]] = []
    for ranks in sorted(wrappers["processes"].unique()):
        cell = select(wrappers, processes=ranks)
        baseline, best = fastest(cell, [BASELINE]), fastest(cell, list(OURS))
        graph = f" {GRAPH}" if cell["compiled"].any() and cell["gpu"].any() else ""
        named = [] if baseline is None or found else [(f"{baseline['precision']}{graph}", 1, baseline)]
        named += [] if best is None else [(f"+ {best['title']}", ranks, best)]
        for title, number, row in named:
            counted = Series({**row, "n": len(parse_samples(row["samples"])) or row["n"]})
            busy = row["busy_share"] * row["median"]
            found.append(step(counted, title, "data_parallel", number, busy, row["memory"]))
    return found


def helped(steps: DataFrame, work: Series | None, one: Facts) -> Answer:
    """The gain of each optimization along the chain, or, without a chain, of all rungs on one GPU."""
    told = steps[steps["told"]] if len(steps) else steps
    begin, best = first(told), last(told.sort_values("tokens", kind="stable") if len(told) else told)
    alone = last(select(told, ranks=1)[1:] if len(told) else told)
    alone = None if alone is None or begin is None or alone["title"] == begin["title"] else alone
    if begin is not None:
        steps = steps.assign(gain=(steps["tokens"] / begin["tokens"]).where(steps["told"]))
    caption = say(
        "The training step of {work[size]}, context {work[context]}, as one setting after another changes: median, "
        "20th and 80th percentile of n steps. Each experiment, and in data_parallel each number of ranks, is a "
        "separate launch. Busy: how long a device works in a step. –: host-bound (no ratio is formed) or unknown.",
        work=work,
    )
    ranks = 1 if best is None else int(best["ranks"])
    facts = Facts(begin=begin, alone=alone, best=best if len(told) > 1 else None, ranks=count(ranks, "GPU"), work=work)
    return Answer(
        asked="What helped",
        missing="Not compared: it needs device-bound steps on several GPUs, or two rungs of training_ladder.",
        verdict=facts.say(
            "{work[size]} trains at {best[tokens]:whole} tokens/s on {ranks}, {best[tokens] / begin[tokens]:times} as "
            "fast as in {begin[title]} on one."
        )
        or one.say(CLIMB),
        more=facts.say(
            "On one, {alone[title]} gives {alone[tokens] / begin[tokens]:times}; {best[ranks]} GPUs add "
            "{best[tokens] / alone[tokens]:times}."
            if ranks > 1
            else ""
        ),
        evidence=Captioned(grid(steps, CHAIN, text_columns=2), caption),
        reason=one.say(
            CLIMB if work is not None else "",
            "Of the rungs in its fastest step, {later:listing} save the most after bf16.",
        ),
    )


def one_gpu(table: DataFrame) -> Facts:
    """The first and the fastest rung of the largest model on one GPU, and the rung that saves most."""
    rungs = rung_table(table)
    found = ends(rungs[rungs["gpu"] != ""])
    if not found:
        return Facts(begin=None, top=None, must=[], most=[], later=[])
    gains = worth_doing(table, found[-1])
    later = gains[gains["rung"] != "autocast"].head(2)
    return Facts(
        begin=first(found[-1]),
        top=fastest_rung(found[-1]),
        must=needed(table, found[-1]),
        most=list(gains["title"].head(2)),
        later=[say("_{rung[title]}_ ({rung[gain]:ms})", rung=rung) for _, rung in later.iterrows()],
    )


def state_sharded(table: DataFrame) -> Typst:
    """The saving from sharding the optimizer's state, if it is not slower, in the first device-bound cell."""
    found = duels(contenders(OptimizerSharding, table), [SHARDED_STATE], [UNSHARDED])
    if not found or found[0].speed.faster is False:
        return NOTHING
    peak = select(peaks(memory(table)), cell=found[0].cell).set_index("contender")["peak"]
    return say(
        "Shard the optimizer state: it saves {saved:gib} at {own[median]:ms} per step, not {other[median]:ms} "
        "({own[cell]}).",
        saved=peak[UNSHARDED] - peak[SHARDED_STATE],
        own=found[0].first,
        other=found[0].other,
    )


def weak_scaling(found: DataFrame, wrappers: DataFrame, why: str) -> Answer:
    """The best wrapper's efficiency by number of ranks."""
    known = found[found["step"].isin(wrappers["median"])]
    means = known[known["contender"].isin(OURS)].groupby("contender")["efficiency"].mean()
    best = select(known, contender=means.idxmax()) if len(means) else known.iloc[:0]
    most = last(best)
    row = None if most is None else first(select(wrappers, median=most["step"]))
    on_gpu = row is not None and bool(row["gpu"])

    def efficiencies(rows: DataFrame) -> list[str]:
        return [f"{percent(row['efficiency'])} on {row['processes']}" for _, row in rows.iterrows()]

    facts = Facts(most=most, cells=efficiencies(best), noun="GPUs" if on_gpu else "processes", theirs=PYTORCHS)
    return Answer(
        asked="Weak scaling",
        missing=why,
        verdict=facts.say("Weak scaling reaches {cells:listing} {noun} with {most[title]}."),
        more=facts.say(
            "That is {most[panel]}, against the same step without communication; {theirs} reaches {others:listing}.",
            others=efficiencies(select(known, title=PYTORCHS)),
        ),
        evidence=["weak_scaling"] if on_gpu else [],
        details=[] if on_gpu else ["weak_scaling"],
        reason="" if row is None else against_baseline(row, f"{row['title']} ({row['cell']})"),
    )


def advice(tables: Tables, steps: DataFrame, found: DataFrame, one: Facts) -> Answer:
    """The recommended way to train on this machine: on several devices, or else on its one GPU."""
    several = steps[steps["told"] & (steps["ranks"] > 1)].sort_values("tokens") if len(steps) else steps
    several = select(several, precision="bf16") if len(several) else several
    best = last(several)
    fsdp = last(found[found["contender"].isin(OUR_FSDP)].sort_values("efficiency", kind="stable"))
    graph = f" {GRAPH}," if best is not None and best["compiled"] else ""
    wrapper = "" if best is None else OURS[best["contender"]]
    ladder = wrapped_table(tables["training_ladder"])
    others = ladder[(ladder["gpu"] != "") & (ladder["rung"] != TOP.name)].sort_values("step")
    steps_of = [say("{row[step]:ms} ({row[title]})", row=row) for _, row in others.iterrows()]
    facts = Facts(best=best, wrapper=wrapper, fsdp=fsdp, steps=steps_of)
    return Answer(
        asked="What to do on this machine",
        missing="Cannot be decided: no device-bound training step was measured.",
        verdict=facts.say("Train in {best[precision]}," + graph + " with _{wrapper}_ data parallelism.")
        or one.say("Start with {must:listing}: without them, {top[label]} does not fit.")
        or one.say("Start with {most:listing}: nothing else shortens {top[label]}'s step as much."),
        more=facts.say(
            state_sharded(tables["optimizer_sharding"]),
            "If weights do not fit, use _{fsdp[title]}_: where they fit ({fsdp[panel]}, {fsdp[processes]} ranks), it "
            "keeps {fsdp[efficiency]:percent} of the speed.",
        ),
        reason=facts.say(
            "Launched kernel by kernel in bf16 (@sec-training_ladder), a step takes {steps:listing}.",
            "@sec-torch_compile shows what compiling costs, @sec-host_costs the host overhead without a graph, "
            "@sec-beyond_nccl what limits _{wrapper}_, and @sec-fsdp how training with sharded weights compares.",
        ),
    )
