"""Answers to the 2026 edition's leaderboard: measured where its step, or one rank's part, ran; else closed forms."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.accounting import leaderboard
from cs336_systems.accounting.fused_training import RankMemory
from cs336_systems.accounting.units import BYTES, MIB
from cs336_systems.measure.gpus import gpu_of, listed
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.communication import all_reduce_table, lines
from scripts.views.data import measured_gpu, ratio, select, statistic
from scripts.views.units import GB

OTHER_GPU = "NVIDIA H200"
"""That of the recorded results, next to the leaderboard's."""
MEMORY = "Memory of a rank by closed form; GB are 10⁹ bytes."
PARTS = {
    "step": "the step, on two GPUs",
    "rank": "one rank's part, alone",
    "one_card": "one sequence and all weights, on one GPU",
}
"""Parts of the experiment, and what readers call them."""
COLUMNS = {
    "step": ("step (s)", 1e-3),
    "forward_backward": ("passes (s)", 1e-3),
    "update": ("update alone (s)", 1e-3),
    "peak_memory": ("peak (GB)", MIB / GB),
    "planned_memory": ("planned (GB)", MIB / GB),
    "recomputed_blocks": ("blocks computed again", 1.0),
    "cold_start": ("cold start (s)", 1.0),
}
"""Metrics, their columns in the table, and the factors to their units."""
Parts = Mapping[str, Mapping[str, float | None]]
"""The metrics of each measured part, in the units of COLUMNS."""


def answers(tables: Tables) -> Found:
    """The section's answers, and what the question gives."""
    parts = measured_parts(tables)
    return {"given": leaderboard, "time": measured(tables, parts) if parts else derived()}


def measured_parts(tables: Tables) -> Parts:
    """The medians of each part that was timed at the leaderboard's size."""
    table = tables.get("leaderboard", DataFrame())
    parts = {}
    for part in PARTS if len(table) else ():
        cell = cell_of(table, part)
        medians = {name: statistic(cell, "median", metric=name) for name in COLUMNS}
        if medians["step"] is not None:
            parts[part] = {name: ratio(median, 1 / COLUMNS[name][1]) for name, median in medians.items()}
    return parts


def cell_of(table: DataFrame, part: str) -> DataFrame:
    """The rows of a part at the leaderboard's size, with no more blocks computed again than memory needed."""
    return select(
        table[table["size"].map(lambda size: parse_size(size) == leaderboard.SHAPE)],
        part=part,
        processes=leaderboard.GPUS if part == "step" else 1,
        context=leaderboard.CONTEXT,
        batch_size=leaderboard.BATCH_SIZE // leaderboard.GPUS,
        vocab_size=leaderboard.VOCAB_SIZE,
        recomputed=-1,
    )


def measured(tables: Tables, parts: Parts) -> Answer:
    """The answer where a part was measured."""
    gpu = measured_gpu(tables)
    return Answer(
        asked="Time",
        verdict=verdict(parts, short(gpu)),
        more=more(parts, communication(tables)),
        evidence=Captioned(measured_table(parts), "Measured parts of the step; GB are 10⁹ bytes."),
        reason=say(utilization(parts, gpu), one_card(parts, short(gpu)), work()),
        details=Captioned(memory_table(), MEMORY),
    )


def verdict(parts: Parts, gpu: str) -> Typst:
    """The time of the step, or of the part that is most of it."""
    took = {part: values["step"] for part, values in parts.items()}
    sentence = {
        "step": "On two {gpu}s the step takes {took:s}; the record, on two {board}s, is {record:s}.",
        "rank": "A rank's part takes {took:s} on one {gpu}; the record, on two {board}s, is {record:s}.",
        "one_card": "One sequence takes {took:s} on one {gpu}, the update of all weights included.",
    }
    part = next(part for part in PARTS if part in parts)
    given = {"board": short(leaderboard.GPU), "record": leaderboard.RECORD_SECONDS} if part != "one_card" else {}
    return say(sentence[part], took=took[part], gpu=gpu, **given)


def more(parts: Parts, sent: float | None) -> Typst:
    """The cold start of the step; or, of one rank's part, what follows for two ranks."""
    if "step" in parts:
        return say("Its cold start takes {cold:s}.", cold=parts["step"]["cold_start"])
    alone = parts["rank"]["step"] if "rank" in parts else None
    if alone is None or sent is None:
        return Typst("")
    facts = Facts(least=max(alone, sent), most=alone + sent)
    return facts.say("Two need between {least:s}, with all communication hidden, and {most:s}, with none.")


def communication(tables: Tables) -> float | None:
    """Seconds of a step's communication: a reduce-scatter and an all-gather send as many bytes as an all-reduce."""
    table = tables.get("all_reduce", DataFrame())
    line = lines(all_reduce_table(table)).get(("nccl", leaderboard.GPUS)) if len(table) else None
    return line.seconds(BYTES["bf16"] * leaderboard.PARAMETERS) if line else None


def utilization(parts: Parts, gpu: str) -> Typst:
    """The share of the bf16 peak that the step, or one rank's part, uses, without and with what it computes again."""
    values = next(parts[part] for part in PARTS if part in parts)
    peak, took, again = gpu_of(gpu), values["step"], values["recomputed_blocks"]
    if peak is None or took is None or again is None:
        return Typst("")
    cell = (leaderboard.SHAPE, leaderboard.VOCAB_SIZE, leaderboard.BATCH_SIZE // leaderboard.GPUS, leaderboard.CONTEXT)
    once, all_of_it = (leaderboard.rank_flops(*cell, blocks) / peak.bf16 / took for blocks in (0, round(again)))
    facts = Facts(once=once, all_of_it=all_of_it, again=round(again), layers=leaderboard.SHAPE.num_layers)
    return facts.say(
        "This is {once:percent} of the bf16 peak, {all_of_it:percent} with the {again} of {layers} blocks that are "
        "computed again, but for attention."
    )


def one_card(parts: Parts, gpu: str) -> Typst:
    """The rate of one GPU with all weights."""
    if "one_card" not in parts or len(parts) == 1:
        return Typst("")
    took = parts["one_card"]["step"]
    facts = Facts(took=took, gpu=gpu, rate=round(leaderboard.CONTEXT / took) if took else None)
    return facts.say(
        "With the update of all weights, a sequence takes {took:s} on one {gpu}: {rate} tokens per second."
    )


def derived() -> Answer:
    """The answer where nothing was measured."""
    total = sum(leaderboard.step_flops().values())
    least, other = (total / (leaderboard.GPUS * listed(gpu).bf16) for gpu in (leaderboard.GPU, OTHER_GPU))
    facts = Facts(gpu=short(leaderboard.GPU), least=least, record=leaderboard.RECORD_SECONDS)
    return Answer(
        "Time",
        facts.say(
            "Not measured. At bf16 peak two {gpu}s take {least:s}: the record, {record:s}, uses "
            "{least / record:percent}."
        ),
        say("Two {gpu}s would need at least {least:s}.", gpu=short(OTHER_GPU), least=other),
        evidence=Captioned(memory_table(), MEMORY, closed_form=True),
        reason=say(work(), chosen(leaderboard.GPU), chosen(OTHER_GPU)),
    )


def work() -> Typst:
    """The step's FLOPs, and the peak that they are compared with."""
    flops = leaderboard.step_flops()
    total = sum(flops.values())
    facts = Facts(flops=flops, total=total, gpu=short(leaderboard.GPU), peak=listed(leaderboard.GPU))
    return facts.say(
        "The step has {work:PFLOP} of matmuls, three times those of its forward pass with causal attention counted "
        "half; {flops[attention] / total:percent} are attention's, {flops[head] / total:percent} the head's. The peak "
        "of a {gpu} is {peak.bf16 / tera:TFLOP/s} ({peak.source}).",
        work=total / 1e15,
        tera=1e12,
    )


def chosen(gpu: str) -> Typst:
    """How many blocks a rank computes again on a GPU of its whole memory."""
    peak = gpu_of(gpu)
    memory = rank_memory().fitted(peak.memory) if peak else None
    if memory is None or peak is None or not memory.fits(peak.memory):
        return Typst("")
    facts = Facts(size=peak.memory / GB, gpu=short(gpu), again=memory.recomputed, layers=leaderboard.SHAPE.num_layers)
    return facts.say(
        "Given the {size:GB} of one {gpu}, {again} of {layers} blocks are computed again, but for attention."
    )


def rank_memory(recomputed: int = 0) -> RankMemory:
    """A rank's memory with bf16 weights and sharded fp32 masters."""
    return RankMemory(
        shape=leaderboard.SHAPE,
        vocab_size=leaderboard.VOCAB_SIZE,
        tokens=leaderboard.CONTEXT,
        ranks=leaderboard.GPUS,
        recomputed=recomputed,
    )


def measured_table(parts: Parts) -> Table:
    """The measured parts."""
    rows = [
        [PARTS[part], *(fixed_point(values[name], 0 if name == "recomputed_blocks" else 2) for name in COLUMNS)]
        for part, values in parts.items()
    ]
    return Table(["part", *(title for title, _ in COLUMNS.values())], rows)


def memory_table() -> Table:
    """The memory of a rank by strategy: its state, and what its forward pass leaves, checkpointed or not."""
    state, kept = leaderboard.STATE_BYTES, rank_memory()
    again = rank_memory(recomputed=leaderboard.SHAPE.num_layers)
    rows = {
        "fp32 state, whole on every rank": state,
        "fp32 state, sharded over the ranks": state / leaderboard.GPUS,
        "bf16 weights, gradients on their way, sharded masters and moments": kept.weights + kept.gradients + kept.state,
        "the same, with weights sharded too (FSDP), but for those in use": kept.weights / leaderboard.GPUS
        + kept.gradients
        + kept.state,
        "autocast saves for backward, nothing computed again": leaderboard.saved_bytes(0),
        "autocast saves for backward, each block computed again": leaderboard.saved_bytes(1),
        "bf16 weights and fused passes save, nothing computed again": kept.activations,
        "bf16 weights and fused passes save, each block but attention computed again": again.activations,
    }
    return Table(["of one rank", "GB"], [[name, f"{size / GB:.1f}"] for name, size in rows.items()])


def short(gpu: str) -> str:
    """A GPU's name without its vendor."""
    return gpu.removeprefix("NVIDIA ")
