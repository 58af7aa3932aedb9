"""Answers to `fsdp`: training with sharded weights against PyTorch's, and against data parallelism."""

from pandas import DataFrame, Series

from cs336_systems.compare.speed import SAME
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.limits import AHEAD, REDUCTIONS
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, choose
from scripts.rendering.grid import Columns
from scripts.rendering.markup import Tile, escape, times
from scripts.views.closed_forms import sized
from scripts.views.comparison import Duel, contenders, device_bound, duels, fastest, first_cell, yours
from scripts.views.comparison_tables import MEMORY, STARS, STEP, contender_table, missing, setting
from scripts.views.data import first, select, size_order
from scripts.views.data_parallel import elsewhere, why_missing
from scripts.views.fsdp import OURS, PYTORCH, whole_weights
from scripts.views.units import GIB

COLUMNS: Columns = {
    "step / ms": STEP,
    "phases / ms": {"forward": "{forward:cut}", "backward": "{after_forward:cut}", "optimizer": "{optimizer:cut}"},
    "GiB": MEMORY,
}
WHOLE = "symmetric_memory"
"""Data parallelism at its fastest, with the whole state on every rank."""
SHARDED_STATE = "sharded_optimizer"
UNSHARDED = [BASELINE, WHOLE, SHARDED_STATE]
"""Contenders with all weights on every rank."""
TUNED = "fully_shard_tuned"
STATES = 4
"""Weights, gradients, and two moments."""


def answers(tables: Tables) -> Answers:
    """The section's answers, its setup, and the verdict against PyTorch's."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    # Synchronization is NaN if it is not separate from the pass.
    rows = rows.assign(after_forward=rows[["backward", "synchronization"]].sum(axis=1, min_count=1))
    comparisons = against_pytorch(rows)
    return {
        "pytorch": pytorch(table, rows, comparisons),
        "whole": whole(table, rows),
        "largest": largest(table, rows),
        "s": setting(rows),
        "autocast": bool(len(select(rows[rows["contender"].isin(UNSHARDED)], precision="bf16"))),
        "ahead": AHEAD,
        "reductions": REDUCTIONS,
        "against": comparisons,
    }


def tiles(section: Answers) -> list[Tile]:
    """How much faster our fully sharded step is than PyTorch's, on GPUs."""
    asked = next(iter(section["against"]), None)
    if not section["s"] or not section["s"]["gpu"] or asked is None or not asked.speed.faster:
        return []
    model = f"{sized(asked.first)}{asked.cell.removeprefix(asked.first['label'])}"
    meaning = escape(f"speedup of our FSDP over PyTorch's {theirs(asked.other)}: {model}")
    return [Tile(times(asked.speed.ratio), meaning)]


def theirs(row: Series) -> str:
    """PyTorch's contender and its setting in words."""
    return f"{'tuned' if row['contender'] == TUNED else 'default'} fully_shard"


def against_pytorch(rows: DataFrame) -> list[Duel]:
    """Ours against PyTorch's, each at its fastest, in every device-bound cell: the largest model first."""
    sizes = size_order(rows) if len(rows) else []
    return sorted(duels(rows, OURS, PYTORCH), key=lambda duel: sizes.index(duel.first["size"]), reverse=True)


def pytorch(table: DataFrame, rows: DataFrame, comparisons: list[Duel]) -> Answer:
    """Which step is shorter for the largest model, and the steps of every device-bound cell."""
    if not comparisons:
        return Answer("Against fully_shard", missing=why_missing(table, rows))
    asked = comparisons[0]
    facts = Facts(own=asked.first, theirs=asked.other, row=first(rows))
    outside = "With memory outside the allocator it" if asked.first["outside_memory"] > 0 else "It"
    return Answer(
        asked="Against fully_shard",
        verdict=asked.speed.sentence("FSDP (ours)", theirs(asked.other), f"({asked.cell})"),
        more=facts.say(
            f"{outside} peaks at {{own[memory]:gib}}, {theirs(asked.other)} at {{theirs[memory]:gib}}.",
            elsewhere(comparisons, ", against the faster fully_shard variant"),
            yours(select(rows, cell=asked.cell), {"FSDP (ours)": OURS}),
        ),
        results=Captioned(
            contender_table(FullyShardedTraining, table, device_bound(rows), COLUMNS),
            facts.say("Training steps: median and 20th and 80th percentiles of {row[n]:whole} steps."),
            legend={
                "phases / ms": "Phases: medians, timed separately; backward includes gradient synchronization",
                **STARS,
            },
        ),
        reason=facts.say(
            "`fully_shard` uses its default prefetching"
            + choose(
                TUNED in set(rows["contender"]),
                "; _tuned_, it prefetches two blocks in both passes"
                + (" and takes its communication buffers from NCCL's allocator." if asked.first["gpu"] else "."),
                ".",
            ),
            "No verdict on {cells:listing}: host-bound.",
            cells=list(rows[rows["host_bound"].astype(bool)]["cell"].unique()),
        ),
    )


def whole(table: DataFrame, rows: DataFrame) -> Answer:
    """The cost and the saving of sharded weights, in the first device-bound cell that has both."""
    comparisons = duels(rows, OURS, [WHOLE])
    if not comparisons:
        lost = first(table[(table["wrapper"] == WHOLE) & (table["status"] == "skipped")])
        why = "" if lost is None else f"Data parallelism was not measured: {lost['message']}."
        return Answer("Against unsharded weights", missing=why or why_missing(table, rows))
    own, other, gain = comparisons[0].first, comparisons[0].other, comparisons[0].speed
    state = first(select(rows, cell=own["cell"], contender=SHARDED_STATE))
    facts = Facts(own=own, other=other, state=state, share=gain.share)
    less, more = "{share:percent} shorter than", "{share:percent} longer than"
    return Answer(
        asked="Against unsharded weights",
        missing="Not compared: peak memory is counted on GPUs only.",
        verdict=facts.say(
            "_{own[title]}_ takes {own[memory]:gib} per rank, data parallelism {other[memory]:gib} ({own[cell]})."
        ),
        more=facts.say(
            "Its step is " + choose(gain.faster, less, more, "on par with") + " data parallelism's: {own[median]:ms} "
            "against {other[median]:ms}."
            if gain.faster is not None or gain.verdict == SAME
            else "",
            "With only the optimizer state sharded, a step takes {state[memory]:gib} and {state[median]:ms}.",
            "Memory: peak plus outside the allocator." if other["outside_memory"] > 0 else "",
        ),
    )


def largest(table: DataFrame, rows: DataFrame) -> Answer:
    """Whether a model trains whose state no single device holds."""
    sizes = size_order(rows) if len(rows) else []
    shown = select(rows, size=sizes[-1]) if len(sizes) > 1 else rows.iloc[:0]
    trained = first_cell(shown)
    own = fastest(trained, OURS)
    if own is None:
        none = "Not measured: no larger model was trained."
        return Answer("A larger model", missing=none if len(rows) else missing(table))
    facts = Facts(
        own=own,
        setting=own["cell"].removeprefix(f"{own['label']}, "),
        state=STATES * whole_weights(own) / GIB,
        device=own["gpu_memory"] / GIB if own["gpu_memory"] else None,
    )
    return Answer(
        asked="A larger model",
        verdict=facts.say(
            "{own[label]} trains with sharded weights: {own[median]:ms} per step, {own[memory]:gib} per rank "
            "({setting})."
        ),
        more=facts.say("Its weights, gradients and moments take {state:GiB}, and one GPU has {device:GiB}."),
    )
