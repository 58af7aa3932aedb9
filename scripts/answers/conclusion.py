"""How far the optimizations of this report take one training step, how it scales, and what to do on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, percent, significant
from scripts.views.comparison import contenders, device_bound, fastest, ranks_of
from scripts.views.comparison_tables import NONE
from scripts.views.data import HANDOUT_CONTEXT, PRECISIONS, measured_machine, select
from scripts.views.data_parallel import OURS
from scripts.views.fsdp import OURS as OUR_FSDP
from scripts.views.scaling import PYTORCHS, scaling
from scripts.views.steps import HOST_BOUND, step_table
from scripts.views.training_ladder import ends, rung_table
from scripts.views.training_ladder import fastest as fastest_rung

SIZE = "xl"
GRAPH = "compiled into one CUDA graph"
"""How data parallelism runs a compiled step on GPUs."""
WORK = ["size", "context", "batch_size", "vocab_size"]
"""What steps have to have in common if their tokens are compared."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step in one setting."""

    title: str
    launch: str
    """The experiment whose launch it is of."""
    ranks: int
    row: Series
    """Its median, percentiles and n, and the parameters of its model."""
    busy: float | None
    """Milliseconds for which the device works in a step."""
    memory: float | None
    """MiB of a device at the peak."""

    @property
    def tokens(self) -> float:
        """Tokens of all ranks per second."""
        return float(self.ranks * self.row["batch_size"] * self.row["context"] / self.row["median"] * 1e3)

    @property
    def told(self) -> bool:
        """Whether ratios may be formed from it: not on a processor, which other programs share."""
        return bool(self.row["gpu"]) and (self.busy is None or self.busy >= HOST_BOUND * self.row["median"])

    @property
    def utilization(self) -> float | None:
        """FLOPs of a device's matrix multiplies over its time and its dense peak; None where that is not known."""
        row, peak = self.row, gpu_of(self.row["gpu"])
        size, work = parse_size(row["size"]), (int(row["vocab_size"]), int(row["batch_size"]), int(row["context"]))
        flops = step_flops("train_step", size, *work)
        return flops / (row["median"] / 1e3) / peak.flops(row["precision"]) if peak else None


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    wrappers = compared_wrappers(contenders(DataParallelTraining, tables["data_parallel"]))
    work = dict(wrappers.iloc[0][WORK]) if len(wrappers) else {"size": SIZE, "context": HANDOUT_CONTEXT}
    steps = [*one_device(tables, work), *several_devices(wrappers)]
    found = scaling(tables)
    return {
        "helped": helped(tables, steps, work),
        "scaling": weak_scaling(found, wrappers),
        "advice": advice(steps, found),
    }


def compared_wrappers(rows: DataFrame) -> DataFrame:
    """The contenders of data parallelism in one setting: a device-bound one, compiled and in bf16 if there is one."""
    told = device_bound(rows)
    if not len(told):
        return told
    order = told.assign(precision=told["precision"].map(PRECISIONS.index)).sort_values(["compiled", "precision"])
    best = told.loc[order.index[-1]]
    return select(told, compiled=best["compiled"], precision=best["precision"])


def one_device(tables: Mapping[str, DataFrame], work: Mapping[str, Any]) -> list[Step]:
    """The steps of one device by itself that do this work: fp32, bf16, and compiled."""
    whole = {"mode": "train_step", "attention": "plain", **work}
    found = []
    eager = step_table(tables["end_to_end"])
    eager = eager.rename(columns={"step": "median"})
    spread = select(tables["end_to_end"], metric="step")
    for precision, title in (("fp32", "fp32"), ("bf16", "bf16 autocast")):
        cell = {"precision": precision, "compiled": False, "cold_start": False, **whole}
        timed = select(spread, status="ok", **cell).sort_values("warmup")
        rows = select(eager, **cell).sort_values("warmup")
        if len(timed) and len(rows):
            row, last = timed.iloc[-1], rows.iloc[-1]
            busy, memory = (
                None if last[name] != last[name] else float(last[name]) for name in ("device_busy", "peak_memory")
            )
            found.append(Step(title=title, launch="end_to_end", ranks=1, row=row, busy=busy, memory=memory))
    profiles = select(tables["kernel_profile"], precision="bf16", compiled=True, **whole)
    for _, row in select(profiles, metric="step", status="ok").iterrows():
        busy = float(select(profiles, metric="stage_busy")["median"].sum()) or None
        found.append(Step(title="bf16 compiled", launch="kernel_profile", ranks=1, row=row, busy=busy, memory=None))
    return found


def several_devices(wrappers: DataFrame) -> list[Step]:
    """The step without communication, and the fastest one of ours with it for each number of ranks."""
    found: list[Step] = []
    for ranks in sorted(wrappers["processes"].unique()):
        cell = select(wrappers, processes=ranks)
        floor, best = fastest(cell, [FLOOR]), fastest(cell, list(OURS))
        graph = f" {GRAPH}" if cell["compiled"].any() and cell["gpu"].any() else ""
        if floor is not None and not found:
            found.append(of_wrapper(f"{floor['precision']}{graph}", 1, floor))
        if best is not None:
            found.append(of_wrapper(f"+ {best['title']}", int(ranks), best))
    return found


def of_wrapper(title: str, ranks: int, row: Series) -> Step:
    """A contender of data parallelism as a step; what it works in a profiled step is taken for a timed one's."""
    known = row[["device_busy", "memory"]].notna()
    n = len(parse_samples(row["samples"])) or row["n"]
    return Step(
        title=title,
        launch="data_parallel",
        ranks=ranks,
        row=Series({**row, "n": n}),
        busy=row["busy_share"] * row["median"] if known["device_busy"] else None,
        memory=float(row["memory"]) if known["memory"] else None,
    )


def helped(tables: Mapping[str, DataFrame], steps: list[Step], work: Mapping[str, Any]) -> Answer:
    """What helped, by how much, in which order."""
    told = [step for step in steps if step.told]
    first, last = (told[0], max(told, key=lambda step: step.tokens)) if told else (None, None)
    alone = [step for step in told if step.ranks == 1]
    machine = measured_machine(tables)
    caption = say(
        "The training step of {size}, context {context}, on {machine}, one setting after another changed: median, 20th "
        "and 80th percentile of n steps. Each experiment, and in `data_parallel` each number of ranks, is a launch of "
        "its own. _Busy_: how long a device works in a step. –: host-bound, so no ratio is formed, or not known.",
        size=work["size"],
        context=int(work["context"]),
        machine=machine,
    )
    return Answer(
        asked="What helped",
        missing=f"Not measured: no device-bound training step of {work['size']} at context {work['context']}.",
        verdict=NOTHING
        if first is None or last is None or last is first
        else say(
            "{ranks} {noun} process {tokens} tokens per second, {gain:times} what {first} does on one.",
            ranks=last.ranks,
            noun=noun(last),
            gain=last.tokens / first.tokens,
            first=first.title,
            tokens=round(last.tokens),
        ),
        more=say(
            "On one, {title} gives {alone:times}; {ranks} {noun} add {more:times}.",
            title=alone[-1].title,
            alone=alone[-1].tokens / first.tokens,
            ranks=last.ranks,
            noun=noun(last),
            more=last.tokens / alone[-1].tokens,
        )
        if first is not None and last is not None and len(alone) > 1 and last.ranks > 1
        else NOTHING,
        evidence=[Captioned(table_of(steps, first), caption)] if steps else [],
        reason=paragraph(device_work(steps), attention(tables), ladder(tables)),
    )


def noun(step: Step) -> str:
    """What ranks are called."""
    return "GPUs" if step.row["gpu"] else "processes"


def device_work(steps: list[Step]) -> Typst:
    """What precision and compilation do to the device's work, in the order of their gain."""
    known = [step for step in steps if step.ranks == 1 and step.busy]
    gains = [
        (before.busy / after.busy, before, after) for before, after in pairwise(known) if before.busy and after.busy
    ]
    if not gains:
        return NOTHING
    sentences = [
        say(
            "{after} ({gain:times}: {least:ms} to {most:ms})",
            after=after.title,
            least=before.busy,
            most=after.busy,
            gain=gain,
        )
        for gain, before, after in sorted(gains, key=lambda each: -each[0])
        if gain > 1.02
    ]
    alone = next((step for step in known if step.launch == "kernel_profile"), None)
    graph = next((step for step in known if GRAPH in step.title), None)
    return paragraph(
        say("The device's own work shrinks with {sentences:listing}.", sentences=sentences),
        NOTHING
        if alone is None or graph is None or not alone.busy or not graph.busy or alone.told
        else say(
            "A CUDA graph leaves it as it is and removes the waiting for the host: the device works for "
            "{alone:percent} of the compiled step without one and {graph:percent} with it.",
            alone=alone.busy / alone.row["median"],
            graph=graph.busy / graph.row["median"],
        ),
    )


def attention(tables: Mapping[str, DataFrame]) -> Typst:
    """What our attention kernels, which are no part of the chain, do to the device's work at the longest context."""
    steps = step_table(tables["end_to_end"])
    steps = select(steps, mode="train_step", compiled=False, precision="bf16", size=SIZE, cold_start=False)
    both = [select(steps, attention=name, context=steps["context"].max()) for name in ("plain", "flash")]
    if not all(len(rows) for rows in both):
        return NOTHING
    return say(
        "Our attention kernels, which this chain leaves out, cut it from {plain:ms} to {flash:ms} at context "
        "{context}.",
        plain=both[0]["device_busy"].iloc[0],
        flash=both[1]["device_busy"].iloc[0],
        context=int(both[0]["context"].iloc[0]),
    )


def ladder(tables: Mapping[str, DataFrame]) -> Typst:
    """How far one GPU's step comes if nothing of this project is left out."""
    rungs = rung_table(tables["training_ladder"])
    found = ends(rungs[rungs["gpu"] != ""])
    if not found:
        return NOTHING
    first, best = found[-1].iloc[0], fastest_rung(found[-1])
    return say(
        "With every improvement of @sec-training_ladder, one GPU's step of {size} goes from {first:ms} to {best:ms}.",
        size=best["label"],
        first=first["step"],
        best=best["step"],
    )


def table_of(steps: list[Step], first: Step | None) -> Table:
    """One row per setting."""
    body = []
    for step in steps:
        row = step.row
        ratio = f"{step.tokens / first.tokens:.2f}" if first and step.told else NONE
        body.append(
            [
                step.title,
                step.launch,
                str(step.ranks),
                f"{row['median']:.1f}",
                f"{row['p20']:.1f}–{row['p80']:.1f}",
                str(int(row["n"])),
                NONE if step.busy is None else f"{step.busy:.1f}",
                f"{step.tokens:.0f}",
                ratio,
                NONE if step.utilization is None else f"{100 * step.utilization:.1f}",
                NONE if step.memory is None else str(significant(step.memory / 1024)),
            ]
        )
    titles = [
        "",
        "launch",
        "ranks",
        "median",
        "p20–p80",
        "n",
        "busy / ms",
        "tokens/s",
        "× first",
        "MFU / %",
        "peak / GiB",
    ]
    groups = [("", 3), ("step / ms", 3), ("device", 1), ("all ranks", 2), ("of a device", 2)]
    return Table(titles, body, text_columns=2, groups=groups)


def weak_scaling(found: DataFrame, wrappers: DataFrame) -> Answer:
    """The best wrapper's efficiency by number of ranks."""
    known = found[found["step"].isin(wrappers["median"])]
    means = known[known["contender"].isin(OURS)].groupby("contender")["efficiency"].mean()
    best = select(known, contender=means.idxmax()) if len(means) else known.iloc[:0]
    theirs = select(known, title=PYTORCHS)
    cells = [f"{percent(row['efficiency'])} on {row['processes']}" for _, row in best.iterrows()]
    others = [f"{percent(row['efficiency'])} on {row['processes']}" for _, row in theirs.iterrows()]
    last = best.iloc[-1] if len(best) else None
    row = None if last is None else wrappers[wrappers["median"] == last["step"]].iloc[0]
    return Answer(
        asked="Weak scaling",
        missing="Not measured: no device-bound, steady step without communication.",
        verdict=NOTHING
        if last is None or row is None
        else say(
            "Weak scaling reaches {cells:listing} {noun} with {title}.",
            title=last["title"],
            cells=cells,
            noun="GPUs" if row["gpu"] else "processes",
        ),
        more=say(
            "That is {panel}, against the same step without communication; {name} reaches {others:listing}.",
            panel=None if last is None else last["panel"],
            name=PYTORCHS,
            others=others,
        ),
        evidence=["weak_scaling"],
        reason=NOTHING
        if row is None or not min(row["longer"], row["stretched"]) > 0
        else say(
            "On {ranks}, the profiled step is {longer:ms} longer than without communication: {uncovered:ms} of "
            "communication run beside no compute, and compute takes {stretched:ms} longer.",
            ranks=ranks_of(row),
            longer=row["longer"],
            uncovered=row["uncovered"],
            stretched=row["stretched"],
        ),
    )


def advice(steps: list[Step], found: DataFrame) -> Answer:
    """What a reader should do on this machine."""
    several = [step for step in steps if step.told and step.ranks > 1]
    best = max(several, key=lambda step: step.tokens, default=None)
    sharded = found[found["contender"].isin(OUR_FSDP)].sort_values("efficiency", kind="stable")
    fsdp = sharded.iloc[-1] if len(sharded) else None
    graph = f" {GRAPH}," if best is not None and bool(best.row["compiled"]) and best.row["gpu"] else ""
    return Answer(
        asked="What to do on this machine",
        missing="Cannot be told: no device-bound step on several ranks was measured.",
        verdict=NOTHING
        if best is None
        else say(
            "Train in {precision}," + graph + " with _{wrapper}_ data parallelism.",
            precision=best.row["precision"],
            wrapper=OURS[best.row["contender"]],
        ),
        more=NOTHING
        if fsdp is None
        else say(
            "If the state does not fit, shard it: _{title}_ keeps {share:percent} of the speed without communication "
            "({panel}, {ranks} ranks).",
            title=fsdp["title"],
            share=fsdp["efficiency"],
            panel=fsdp["panel"],
            ranks=int(fsdp["processes"]),
        ),
        reason=say(
            "@sec-torch_compile says after how many steps compiling pays off, @sec-host_costs what the host costs "
            "without a graph, @sec-beyond_nccl what limits _{wrapper}_, and @sec-fsdp which models only train sharded.",
            wrapper=OURS[best.row["contender"]],
        )
        if best is not None and best.row["gpu"]
        else NOTHING,
    )
