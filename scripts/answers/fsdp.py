"""Answers to `fsdp`: training with sharded weights against PyTorch's, and against data parallelism."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.parallel.limits import AHEAD, REDUCTIONS
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say, tell
from scripts.rendering.markup import NOT_MEASURED, Tile, escape
from scripts.rendering.markup import times as ratio
from scripts.views.comparison import OWN, cells_of, contenders, device_bound, fastest, traced_cell
from scripts.views.comparison_tables import (
    OUTSIDE,
    STEP,
    Column,
    contender_table,
    fixed,
    memory,
    missing,
    setting,
    shares,
    times,
)
from scripts.views.data import measured_machine, select, size_order
from scripts.views.fsdp import OURS, PYTORCH, whole_weights
from scripts.views.verdicts import Speed, speed

COLUMNS = [
    *STEP,
    times("forward", "phases / ms", "forward"),
    # Synchronization is NaN where there is none apart from the pass.
    Column(
        "backward", "phases / ms", lambda row: fixed(row[["backward", "synchronization"]].sum(min_count=1)), "backward"
    ),
    times("optimizer", "phases / ms", "optimizer"),
    memory("peak", "peak_memory"),
    OUTSIDE,
]
PROFILE = [
    times("ms", "all-gathers", "gather"),
    shares("hidden / %", "all-gathers", "gather_hidden"),
    times("ms", "reduce-scatters", "scatter"),
    shares("hidden / %", "reduce-scatters", "scatter_hidden"),
    times("step", "profile / ms", "timeline_length"),
    shares("busy / %", "device", "busy_share"),
]
WHOLE = "peer_memory"
"""Data parallelism at its fastest, with all of the state on every rank."""
SHARDED_STATE = "sharded_optimizer"
STATES = 4
"""Weights, gradients, and two moments."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, its set-up, and the verdict against PyTorch's."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    why = f"{NOT_MEASURED.capitalize()}{missing(table).removeprefix(NOT_MEASURED)}."
    against = against_pytorch(rows)
    return {
        "pytorch": pytorch(table, rows, against, why),
        "whole": whole(rows, why),
        "hidden": hidden(table, rows, why),
        "largest": largest(table, rows),
        "s": setting(FullyShardedTraining, table, rows) if len(rows) else None,
        "ahead": AHEAD,
        "reductions": REDUCTIONS,
        "against": against,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """How much faster our fully sharded step is than PyTorch's, on GPUs."""
    gain, cells = found["against"]
    if not found["s"] or not found["s"]["gpu"] or not gain.faster:
        return []
    return [Tile(ratio(gain.ratio), escape(f"as fast as PyTorch's fully_shard ({cells})"), "gain over fully_shard")]


def against_pytorch(rows: DataFrame) -> tuple[Speed, str]:
    """Ours at its fastest against PyTorch's: the one device-bound cell, or the median of all of which it can be told.

    With the cell, or how many there are.
    """
    pairs = [
        (speed(fastest(cell, OURS), fastest(cell, [PYTORCH])), str(cell["cell"].iloc[0]))
        for cell in cells_of(device_bound(rows))
    ]
    told = [(each.ratio, cell) for each, cell in pairs if each.ratio and not each.why_untold]
    if not told:
        return next((pair for pair in pairs if pair[0].ratio), (Speed(None), ""))
    if len(told) == 1:
        return Speed(told[0][0]), told[0][1]
    return Speed(float(Series([each for each, _ in told]).median())), f"median of {len(told)} device-bound cells"


def pytorch(table: DataFrame, rows: DataFrame, against: tuple[Speed, str], why: str) -> Answer:
    """Whose step is shorter, and all steps of which that can be told."""
    gain, cells = against
    told = device_bound(rows)
    shown = (told if len(told) else rows).pipe(lambda found: found[found["processes"] == found["processes"].min()])
    machine = measured_machine({"": table})
    n = int(rows["n"].max()) if len(rows) else None
    caption = say(
        "Training steps on {machine}: median, 20th and 80th percentile of {n} steps; phases: medians, _backward_ with "
        "the synchronization of gradients. _Outside_: memory beyond the allocator's"
        + (r". \*: more than 5 % of the median apart." if shown["wide"].any() else "."),
        machine=machine,
        n=n,
    )
    steps = contender_table(FullyShardedTraining, table[table["processes"].isin(shown["processes"])], shown, COLUMNS)
    every = contender_table(FullyShardedTraining, table, rows, COLUMNS)
    host = rows[rows["host_bound"].astype(bool)]["cell"].unique()
    return Answer(
        asked="Against fully_shard",
        missing=why if not len(rows) else "Not measured: no cell has both our FSDP and fully_shard.",
        verdict=gain.sentence("FSDP (ours)", "PyTorch's fully_shard", f"({cells})"),
        more=paragraph(memory_against(shown), *mine_against(shown)),
        evidence=[Captioned(steps, caption)] if steps else [],
        reason=say("Nothing is concluded from {cells:listing}, which is host-bound.", cells=list(host)),
        details=[Captioned(every, f"Training steps in every cell on {machine}.", long=True)] if every else [],
    )


def memory_against(rows: DataFrame) -> Any:
    """The peaks of both in the first cell."""
    own, theirs = fastest(first(rows), OURS), fastest(first(rows), [PYTORCH])
    if own is None or theirs is None:
        return NOTHING
    return say(
        "Its peak memory is {own:GiB}, theirs {theirs:GiB} ({cell}).",
        own=own["memory"] / 1024,
        theirs=theirs["memory"] / 1024,
        cell=own["cell"],
    )


def mine_against(rows: DataFrame) -> list[Any]:
    """The reader's own against ours in the first cell."""
    cell = first(rows)
    mine = [row for _, row in select(cell, family=OWN).iterrows()]
    return [speed(row, fastest(cell, OURS)).sentence(row["title"], "FSDP (ours)") for row in mine]


def first(rows: DataFrame) -> DataFrame:
    """The first cell."""
    return rows[rows["cell"] == rows["cell"].iloc[0]] if len(rows) else rows


def whole(rows: DataFrame, why: str) -> Answer:
    """What sharding the weights costs and saves, in the first device-bound cell that has both."""
    cells = [
        cell
        for cell in cells_of(device_bound(rows))
        if {WHOLE} & set(cell["contender"]) and fastest(cell, OURS) is not None
    ]
    cell = cells[0] if cells else rows.iloc[:0]
    own, other, state = fastest(cell, OURS), fastest(cell, [WHOLE]), fastest(cell, [SHARDED_STATE])
    if own is None or other is None:
        return Answer(
            asked="Against whole weights",
            verdict=NOTHING,
            missing=why if not len(rows) else "Not measured: no device-bound cell has both.",
        )
    gain = speed(own, other)
    values = {
        "share": abs(own["median"] / other["median"] - 1),
        "own": own["memory"] / 1024,
        "other": other["memory"] / 1024,
    }
    saves = "Against data parallelism, FSDP takes {own:GiB} per rank instead of {other:GiB}"
    return Answer(
        asked="Against whole weights",
        missing="Peak memory is counted on GPUs only.",
        verdict=tell(
            gain.faster,
            say(saves + ", in {share:percent} less time.", **values),
            say(saves + ", in {share:percent} more time.", **values),
            say(saves + "; time cannot be told apart.", **values),
        ),
        more=paragraph(
            say("Measured with {cell}.", cell=own["cell"]),
            say(
                "Sharding the optimizer's state alone takes {memory:GiB} and {step:ms} per step; FSDP {own:ms}.",
                memory=state["memory"] / 1024,
                step=state["median"],
                own=own["median"],
            )
            if state is not None
            else NOTHING,
        ),
        reason=say(
            "Data parallelism and the sharded optimizer keep gradients, and the latter parameters, in symmetric memory "
            "besides ({outside:GiB} and {state:GiB}, in the table under _outside_).",
            outside=other["outside_memory"] / 1024,
            state=None if state is None else state["outside_memory"] / 1024,
        ),
    )


def hidden(table: DataFrame, rows: DataFrame, why: str) -> Answer:
    """How much of the collectives runs beside compute in a device-bound profiled step."""
    cell = traced_cell(device_bound(rows))
    ours = cell[cell["contender"].isin(OURS) & cell["gather"].notna()]
    own = fastest(ours, OURS)
    machine = measured_machine({"": table})
    profiled = rows[rows["gather"] > 0]
    told, every = (
        contender_table(FullyShardedTraining, table.iloc[:0], found, PROFILE)
        for found in (device_bound(profiled), profiled)
    )
    caption = (
        f"Collectives in one profiled step on rank 0, device-bound cells on {machine}; waits for other ranks count."
    )
    skipped = setting(FullyShardedTraining, table, rows)["not_profiled"] if len(rows) else ""
    return Answer(
        asked="Hidden communication",
        missing=f"Not measured: {skipped}."
        if skipped
        else why
        if not len(rows)
        else "No device-bound step was profiled.",
        verdict=NOTHING
        if own is None
        else say(
            "{gather:percent} of all-gather time and {scatter:percent} of reduce-scatter time run beside compute.",
            gather=own["gather_hidden"],
            scatter=own["scatter_hidden"],
        ),
        more=NOTHING if own is None else say("Measured with _{title}_, {cell}.", title=own["title"], cell=own["cell"]),
        evidence=[Captioned(told, caption)] if told else [],
        reason=NOTHING
        if own is None or not min(own["longer"], own["stretched"]) > 0
        else say(
            "The profiled step is {longer:ms} longer than without communication: compute takes {stretched:ms} longer "
            "beside the collectives, and {uncovered:ms} of these run beside no compute.",
            longer=own["longer"],
            stretched=own["stretched"],
            uncovered=own["uncovered"],
        ),
        details=["fsdp_timelines", *([Captioned(every, f"The same in every cell, on {machine}.")] if every else [])],
    )


def largest(table: DataFrame, rows: DataFrame) -> Answer:
    """Whether a model trains whose state no single device holds."""
    sizes = size_order(rows) if len(rows) else []
    shown = select(rows, size=sizes[-1]) if len(sizes) > 1 else rows.iloc[:0]
    own = fastest(first(shown), OURS)
    asked = "A larger model"
    if own is None:
        return Answer(
            asked=asked, verdict=NOTHING, missing="Not measured: one model size only, or none that was trained."
        )
    state, device = STATES * whole_weights(own), float(own["gpu_memory"] or 0)
    trained = first(shown)
    lost = select(table, size=sizes[-1], metric="step", wrapper=FLOOR, status="skipped")
    alone = not len(trained[trained["contender"].isin([FLOOR, WHOLE, SHARDED_STATE])])
    return Answer(
        asked=asked,
        verdict=say(
            "{size} trains on {ranks} GPUs"
            + (" only if its weights are sharded" if alone else " with sharded weights")
            + ": {step:ms} per step, {memory:GiB} each.",
            size=own["label"],
            ranks=int(own["processes"]),
            step=own["median"],
            memory=own["memory"] / 1024,
        ),
        more=say(
            "Its weights, gradients and moments take {state:GB}, and one GPU has {device:GB}.",
            state=state / 1e9,
            device=device / 1e9 if device else None,
        ),
        reason=say("Without sharding, {why}.", why=lost["message"].iloc[0] if len(lost) else None),
    )
