"""How a training step scales over devices, and what to do on this machine."""

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.experiments.training_ladder import TOP
from scripts.rendering.answer import NOTHING, Answer, Facts, Found, Tables, say
from scripts.rendering.markup import Typst, percent
from scripts.views.comparison import contenders, device_bound, duels, fastest, setting_name
from scripts.views.comparison_tables import missing
from scripts.views.data import PRECISIONS, select
from scripts.views.data_parallel import OURS, PYTORCH, against_baseline
from scripts.views.fsdp import OURS as OUR_FSDP
from scripts.views.optimizer_sharding import UNSHARDED, memory, peaks
from scripts.views.training_ladder import ends, needed, rung_table, worth_doing, wrapped_table

SHARDED_STATE = "sharded_symmetric_memory"
GRAPH = "compiled into one CUDA graph"
"""How data parallelism runs a compiled step on GPUs."""


def answers(tables: Tables) -> Found:
    """The section's answers."""
    wrappers = compared_wrappers(contenders(DataParallelTraining, tables["data_parallel"]))
    why = missing(tables["data_parallel"])
    why = "Cannot be decided: no steady, device-bound step without communication." if len(wrappers) else why
    best = fastest(select(wrappers, processes=wrappers["processes"].max()), list(OURS))
    return {"scaling": weak_scaling(wrappers, best, why), "advice": advice(tables, best)}


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
        return Facts(label=None, must=[], most=[])
    ladder = chosen[-1]
    most = list(worth_doing(ladder)["title"].head(2))
    return Facts(label=ladder["label"].iloc[0], must=needed(table, ladder), most=most)


def state_sharded(table: DataFrame) -> Typst:
    """The saving from sharding the optimizer's state, if it is not slower, in the first device-bound cell."""
    found = duels(contenders(OptimizerSharding, table), [SHARDED_STATE], [UNSHARDED])
    if not found or found[0].speed.faster is False:
        return NOTHING
    peak = select(peaks(memory(table)), cell=found[0].cell).set_index("contender")["peak"]
    return say(
        "Shard the optimizer over symmetric memory: {saved:gib} less, {own[median]:ms} per step, not "
        "{other[median]:ms} ({own[cell]}).",
        saved=peak[UNSHARDED] - peak[SHARDED_STATE],
        own=found[0].first,
        other=found[0].other,
    )


def weak_scaling(wrappers: DataFrame, best: Series | None, why: str) -> Answer:
    """The step without communication over the best wrapper's and over PyTorch's best, by number of ranks."""
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
        verdict=facts.say("Weak scaling reaches {cells:listing} {noun} with {wrapper}."),
        more=facts.say(
            "That is {best[label]}, {setting}, against the same step without communication; PyTorch's DDP reaches "
            "{others:listing}."
        ),
        evidence=["weak_scaling"] if best["gpu"] else [],
        details=[] if best["gpu"] else ["weak_scaling"],
        reason=against_baseline(best, f"{best['title']} ({best['cell']})"),
    )


def advice(tables: Tables, fastest_wrapper: Series | None) -> Answer:
    """The recommended way to train on this machine: on several devices, or else on its one GPU."""
    best = fastest_wrapper
    if best is not None and (not best["gpu"] or best["precision"] != "bf16"):
        best = None
    sharded = duels(contenders(FullyShardedTraining, tables["fsdp"]), OUR_FSDP, [BASELINE])
    fsdp = sharded[0] if sharded else None
    graph = f" {GRAPH}," if best is not None and best["compiled"] else ""
    wrapper = "" if best is None else OURS[best["contender"]]
    ladder = wrapped_table(tables["training_ladder"])
    others = ladder[(ladder["gpu"] != "") & (ladder["rung"] != TOP.name)].sort_values("step")
    steps = [say("{row[step]:ms} ({row[title]})", row=row) for _, row in others.iterrows()]
    facts, one = Facts(best=best, wrapper=wrapper, fsdp=fsdp, steps=steps), one_gpu(tables["training_ladder"])
    return Answer(
        asked="What to do on this machine",
        missing="Cannot be decided: no device-bound training step was measured.",
        verdict=facts.say("Train in {best[precision]}," + graph + " with _{wrapper}_ data parallelism.")
        or one.say("Start with {must:listing}: without them, {label} does not fit.")
        or one.say("Start with {most:listing}: nothing else shortens {label}'s step as much."),
        more=facts.say(
            state_sharded(tables["optimizer_sharding"]),
            "If weights do not fit, use _{fsdp.first[title]}_: {fsdp.speed.ratio:percent} of unsharded speed "
            "({fsdp.cell}).",
        ),
        reason=facts.say(
            "Launched kernel by kernel in bf16 (@sec-training_ladder), a step takes {steps:listing}.",
            "@sec-torch_compile shows what compiling costs, @sec-benchmarking_script the host overhead, "
            "@sec-beyond_nccl what limits _{wrapper}_, and @sec-fsdp how training with sharded weights compares.",
        ),
    )
