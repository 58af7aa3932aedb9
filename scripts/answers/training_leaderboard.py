"""Answers to the 2026 edition's leaderboard: measured if its step, or one rank's part, ran; otherwise by closed
forms.
"""

from pandas import DataFrame, Series

from cs336_systems.accounting import leaderboard
from cs336_systems.accounting.units import BYTES, MIB
from cs336_systems.measure.gpus import gpu_of, listed
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Answers, Captioned, Facts, Tables, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst, with_unit
from scripts.views.communication import all_reduce_table, lines
from scripts.views.data import measured_gpu, select
from scripts.views.units import GB

CELL = {
    "context": leaderboard.CONTEXT,
    "batch_size": leaderboard.BATCH_SIZE // leaderboard.GPUS,
    "vocab_size": leaderboard.VOCAB_SIZE,
    "recomputed": -1,
    "status": "ok",
}
"""The leaderboard's step, of one rank."""
PARTS = {"step": "the step on two GPUs", "rank": "one rank's part alone"}
"""Parts of the experiment, and their names for readers."""
UNITS = {
    "step": 1e-3,
    "forward_backward": 1e-3,
    "update": 1e-3,
    "peak_memory": MIB / GB,
    "planned_memory": MIB / GB,
    "recomputed_blocks": 1.0,
    "cold_start": 1.0,
}
"""Metrics, and the factors to seconds and GB."""
MEASURED: Columns = {
    "": "{title}",
    "time / s": {
        "step": "{step:.2f}",
        "p20–p80": "{p20:.2f}–{p80:.2f}",
        "passes": "{forward_backward:.2f}",
        "update alone": "{update:.2f}",
        "cold start": "{cold_start:.2f}",
    },
    "memory / GB": {"peak": "{peak_memory:.2f}", "planned": "{planned_memory:.2f}"},
    "blocks": {"recomputed": "{recomputed_blocks:.0f}"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers, and what the question gives."""
    parts = measured_parts(tables)
    return {"given": leaderboard, "time": measured(tables, parts) if len(parts) else derived(tables)}


def measured_parts(tables: Tables) -> DataFrame:
    """One row per part that was timed at the leaderboard's size, by name: its `title`, the medians of UNITS, and the
    step's `p20` and `p80`, s.

    Only those that recompute no more blocks than memory requires.
    """
    table = tables["leaderboard"]
    if not len(table):
        return table
    rows = select(table[table["size"].map(lambda size: parse_size(size) == leaderboard.SHAPE)], **CELL)
    rows = rows[rows["processes"] == rows["part"].map({"step": leaderboard.GPUS}).fillna(1)]
    parts = rows.pivot(index="part", columns="metric", values="median").reindex(index=list(PARTS), columns=list(UNITS))
    spread = UNITS["step"] * select(rows, metric="step").set_index("part")[["p20", "p80"]]
    return (parts.astype(float) * Series(UNITS)).assign(title=Series(PARTS)).join(spread).dropna(subset="step")


def measured(tables: Tables, parts: DataFrame) -> Answer:
    """The answer where a part was measured."""
    gpu = measured_gpu(tables)
    first = parts.iloc[0]
    sent = communication(tables) if first.name == "rank" else None
    facts = Facts(
        row=first,
        gpu=short(gpu),
        board=short(leaderboard.GPU),
        record=leaderboard.RECORD_SECONDS,
        least=max(first["step"], sent) if sent else None,
        most=first["step"] + sent if sent else None,
    )
    n = select(tables["leaderboard"], metric="step", status="ok")["n"].max()
    verdicts = {
        "step": "On two {gpu}s the step takes {row[step]:s}; the record, on two {board}s, is {record:s}.",
        "rank": "One rank's part takes {row[step]:s} on one {gpu}; the record, on two {board}s, is {record:s}.",
    }
    return Answer(
        asked="Time",
        verdict=facts.say(verdicts[str(first.name)]),
        more=facts.say(
            "Our cold start takes {row[cold_start]:s}; the rules allow 10 minutes." if first.name == "step" else "",
            "Two {gpu}s need between {least:s} (all communication hidden) and {most:s} (none hidden).",
        ),
        results=Captioned(
            grid(parts, MEASURED),
            f"Medians of {n:.0f} steps. Passes: forward and backward, without the update. Cold start: from the start "
            "of the process to the end of its first step. Planned: the closed-form peak, which decides how many blocks "
            "to recompute. One rank's part runs on one GPU, without communication. GB are 10⁹ bytes.",
        ),
        reason=say(
            "Each GPU holds one sequence and all bf16 weights; fp32 masters and moments are sharded. Blocks run fused "
            "passes (@sec-training_ladder) and our attention. Weights are updated during the backward pass. Neither "
            "torch.compile nor a CUDA graph is used."
            if first.name == "step"
            else "",
            utilization(first, gpu),
            work("The record reaches {share:percent} of the peak of two {gpu}s ({peak} each; {source})."),
        ),
    )


def communication(tables: Tables) -> float | None:
    """Seconds of a step's communication: a reduce-scatter and an all-gather together send as many bytes as an
    all-reduce.
    """
    table = tables["all_reduce"]
    line = lines(all_reduce_table(table)).get(("nccl", leaderboard.GPUS)) if len(table) else None
    return line.seconds(BYTES["bf16"] * leaderboard.PARAMETERS) if line else None


def utilization(part: Series, gpu: str) -> Typst:
    """The share of the bf16 peak used by the step, or one rank's part, without and with recomputation."""
    peak, again = gpu_of(gpu), part["recomputed_blocks"]
    if peak is None or not again >= 0:
        return NOTHING
    cell = (leaderboard.SHAPE, leaderboard.VOCAB_SIZE, leaderboard.BATCH_SIZE // leaderboard.GPUS, leaderboard.CONTEXT)
    once, every = (leaderboard.rank_flops(*cell, blocks) / peak.bf16 / part["step"] for blocks in (0, round(again)))
    return say(
        "{who} reaches {once:percent} of its bf16 peak, or {every:percent} if recomputation counts: {again} of "
        "{layers} blocks recompute everything except attention and the down projection.",
        who="Each GPU" if part.name == "step" else "The GPU",
        once=once,
        every=every,
        again=round(again),
        layers=leaderboard.SHAPE.num_layers,
    )


def derived(tables: Tables) -> Answer:
    """The answer where nothing was measured."""
    total, gpu = sum(leaderboard.flops_by_part().values()), gpu_of(measured_gpu(tables))
    least, own = (total / (leaderboard.GPUS * each.bf16) if each else None for each in (listed(leaderboard.GPU), gpu))
    facts = Facts(gpu=short(leaderboard.GPU), least=least, record=leaderboard.RECORD_SECONDS)
    lost = tables["leaderboard"]
    lost = lost[lost["status"].isin(["skipped", "oom"]) & (lost["metric"] == WHOLE_CELL)]
    return Answer(
        "Time",
        facts.say(
            "Not measured. At bf16 peak, two {gpu}s would take {least:s}; the record of {record:s} reaches "
            "{least / record:percent} of peak."
        ),
        say("Two GPUs like this machine's would need at least {own:s}.", own=own),
        reason=say(
            "The step was not run. {why}." if len(lost) else "The step needs two GPUs.",
            work("The peak of a {gpu} is {peak} ({source})."),
            why=next(iter(lost["message"]), None),
        ),
    )


def work(compared: str) -> Typst:
    """The step's FLOPs, and a sentence on the peak that they are compared with."""
    flops = leaderboard.flops_by_part()
    total = sum(flops.values())
    gpu, peak = leaderboard.GPU, listed(leaderboard.GPU)
    return say(
        "The step's matmuls need {work:PFLOP}, three times as many as the forward pass, counting the causal half of "
        "attention. Attention accounts for {flops[attention] / total:percent}, the head for "
        "{flops[head] / total:percent}.",
        compared,
        flops=flops,
        total=total,
        work=total / 1e15,
        gpu=short(gpu),
        peak=with_unit(peak.bf16 / 1e12, "TFLOP/s"),
        source=peak.source,
        share=total / (leaderboard.GPUS * peak.bf16 * leaderboard.RECORD_SECONDS),
    )


def short(gpu: str) -> str:
    """A GPU's name without its vendor."""
    return gpu.removeprefix("NVIDIA ")
