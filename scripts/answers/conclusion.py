"""How a training step scales over devices, and what to do on this machine."""

import math

from pandas import DataFrame, Series

from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.answer import NOTHING, Answer, Answers, Facts, Tables
from scripts.rendering.markup import Typst, percent
from scripts.views.comparison import contenders, device_bound, fastest, setting_name
from scripts.views.comparison_tables import missing
from scripts.views.data import PRECISIONS, measured_gpu, one, select
from scripts.views.data_parallel import OURS, PYTORCH
from scripts.views.training_ladder import ends, italic, needed, rung_table, worth_doing, wrapped_cell
from scripts.views.verdicts import against


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    wrappers = compared_wrappers(contenders(DataParallelTraining, tables["data_parallel"]))
    why = missing(tables["data_parallel"])
    if len(wrappers):
        bound = " or is host-bound" * bool(wrappers["gpu"].iloc[0])
        why = f"Cannot be decided: the step without communication varies too much{bound}."
    cell = select(wrappers, processes=wrappers["processes"].max())
    best = fastest(cell, list(OURS))
    trained = best if best is not None and best["gpu"] and best["precision"] == "bf16" else None
    return {
        "scaling": weak_scaling(wrappers, best, why),
        "advice": advice(tables["training_ladder"], trained, fastest(cell, PYTORCH)),
        "several": trained is not None,
    }


def compared_wrappers(rows: DataFrame) -> DataFrame:
    """The contenders of data parallelism in one setting: a device-bound setting, if possible compiled and in bf16."""
    rows = device_bound(rows)
    if not len(rows):
        return rows
    order = rows.assign(precision=rows["precision"].map(PRECISIONS.index)).sort_values(["compiled", "precision"])
    best = rows.loc[order.index[-1]]
    return select(rows, compiled=best["compiled"], precision=best["precision"])


def one_gpu(table: DataFrame) -> Facts:
    """The largest model on one GPU, the rungs without which it does not fit, and those that save most."""
    rungs = rung_table(table)
    chosen = ends(rungs[rungs["gpu"] != ""])
    if not chosen:
        return Facts(label=None, must=[], most=[], rest=[])
    ladder = chosen[-1]
    order, must = italic(worth_doing(ladder)["title"]), italic(needed(table, ladder))
    start = 0 if must else 2
    return Facts(label=ladder["label"].iloc[0], must=must, most=order[:start], rest=order[start:])


def in_less_memory(ladder: DataFrame) -> tuple[Typst, Typst]:
    """The memory that a sharded optimizer and FSDP save over data parallelism in the same cell, and their steps."""
    cell = wrapped_cell(ladder)
    whole, state, weights = (one(cell, rung=name) for name in ("data_parallel", "sharded", "fsdp"))
    facts = Facts(whole=whole, state=state, weights=None if state is None else weights)
    return facts.say(
        "For {whole[label]} on {whole[processes]} GPUs (bf16, no CUDA graph), data parallelism takes {whole[step]:ms}; "
        "sharding the optimizer and updating in the backward pass takes {state[step]:ms} and saves "
        "{whole[peak_memory] - state[peak_memory]:gib} per GPU."
    ), facts.say(
        "For the same model, FSDP (compiled) takes {weights[step]:ms} and saves "
        "{whole[peak_memory] - weights[peak_memory]:gib}."
    )


def weak_scaling(wrappers: DataFrame, best: Series | None, why: str) -> Answer:
    """The step without communication over the best wrapper's and over PyTorch DDP, by number of ranks."""
    known = wrappers[wrappers["exposed"].notna()].sort_values("median")

    def efficiencies(names: list[str]) -> list[str]:
        rows = known[known["contender"].isin(names)].drop_duplicates("processes").sort_values("processes")
        return [f"{percent(row['baseline'] / row['median'])} on {row['processes']}" for _, row in rows.iterrows()]

    if best is None:
        return Answer("Weak scaling", missing=why)
    facts = Facts(
        best=best,
        wrapper=OURS[best["contender"]],
        cells=efficiencies([best["contender"]]),
        others=efficiencies(PYTORCH),
        setting=setting_name(DataParallelTraining, best),
        noun="GPUs" if best["gpu"] else "processes",
    )
    return Answer(
        asked="Weak scaling",
        missing=why,
        verdict=facts.say("With {wrapper}, {best[label]} scales with an efficiency of {cells:listing} {noun}."),
        more=facts.say(
            "PyTorch DDP reaches {others:listing}.",
            "The baseline is the same step without communication ({setting}).",
        ),
        results=["weak_scaling"] if best["gpu"] else [],
        details=[] if best["gpu"] else ["weak_scaling"],
    )


def most_parameters(best: Series) -> list[float]:
    """Billions of parameters whose fp32 training state fills a GPU: whole, and with AdamW's half of it sharded."""
    state = 4 * FP32_BYTES
    each = (state, state / 2 * (1 + 1 / best["processes"]))
    return [(best["gpu_memory"] or math.nan) / bytes_each / 1e9 for bytes_each in each]


def advice(ladder: DataFrame, best: Series | None, theirs: Series | None) -> Answer:
    """The recommended way to train on this machine: on several devices, or else on one GPU."""
    graph = ", bf16 and a CUDA graph" if best is not None and best["compiled"] else " and bf16"
    wrapper = "" if best is None else OURS[best["contender"]]
    where = "" if best is None else f"({best['cell']})"
    buckets = "" if best is None or not best["bucket_mb"] else f" ({best['bucket_mb']} MB buckets)"
    alone, limits = one_gpu(ladder), None if best is None else most_parameters(best)
    facts = Facts(best=best, wrapper=wrapper, limits=limits)
    state, weights = in_less_memory(ladder)
    return Answer(
        asked="What to do on this machine",
        missing="Cannot be decided: no "
        + ("device-bound training step was measured." if measured_gpu({"": ladder}) else "GPU was measured."),
        verdict=facts.say(
            "For {best[label]} on up to {best[processes]} GPUs, use the _{wrapper}_ wrapper" + graph + "."
        )
        or alone.say("For {label}, start with {must:listing}, the first version that fits.")
        or alone.say("Start with {most:listing}: nothing else shortens {label}'s step as much."),
        more=alone.say("Then add {rest:listing}.") if best is None else state,
        reason=facts.say(
            state if best is None else NOTHING,
            weights,
            "One GPU holds at most the fp32 training state of {limits[0]:sig} billion parameters, or of "
            "{limits[1]:sig} billion with the optimizer sharded over {best[processes]} GPUs; larger models need FSDP.",
            against(best, theirs).sentence(wrapper + buckets, "PyTorch DDP", where),
        ),
    )
