"""Answers to `optimizer_state_sharding_accounting`: memory, time and communication of sharded optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame, Series, isna

from cs336_systems.accounting.optimizer_sharding import SCHEMES, fp32_adamw
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say, tell
from scripts.rendering.markup import NOT_MEASURED, Table, Typst, significant
from scripts.views.comparison import FOREIGN, OWN, PHASES, contenders, device_bound, fastest, names_in
from scripts.views.comparison_tables import NONE, STEP, Column, contender_table, missing, setting, shares, times
from scripts.views.data import measured_machine, select
from scripts.views.earlier import earlier_cells, marked_earlier
from scripts.views.optimizer_sharding import (
    BEFORE_UPDATE,
    CELL,
    INITIALIZED,
    UNSHARDED,
    memory,
    memory_unit_of,
    peaks,
)
from scripts.views.units import GIB
from scripts.views.verdicts import speed

HANDOUT_SIZE, HANDOUT_VOCABULARY = "xl", 10_000
RANKS = (2, 4)
GB = 1e9
FORMULAS = {
    "data parallel": ("$16 P$", "$2 r dot 4 P$"),
    "sharded optimizer": ("$8 P + 8 P \\/ N$", "$3 r dot 4 P$"),
    "ZeRO-1": ("$8 P + 8 P \\/ N$", "$2 r dot 4 P$"),
    "ZeRO-2": ("$4 P + 12 P \\/ N$", "$2 r dot 4 P$"),
}
"""Bytes of a rank's training state, and what it sends in a step; step counters, a few bytes, are left out."""
HANDOUT, PEERS, GRADIENTS = "sharded", "sharded_peer_memory", "sharded_gradients"
"""The handout's scheme, the same over symmetric memory, and with sharded gradients."""
RATIO = Column("× unsharded", "step / ms", lambda row: NONE if isna(row["ratio"]) else f"{row['ratio']:.3f}", "ratio")
COLUMNS = [
    *STEP,
    RATIO,
    *(times({"synchronization": "sync."}.get(phase, phase), "timed apart / ms", phase) for phase in PHASES),
]
PROFILE = [
    *STEP,
    times("comm.", "profile / ms", "communication"),
    shares("hidden / %", "profile / ms", "hidden_share"),
    times("compute", "profile / ms", "compute"),
]
PEAK = "peak of a step"
MOMENTS = {
    "first": {"initialized": "in use"},
    "before the update": {
        "parameters": "weights",
        "gradients": "gradients",
        "optimizer_state": "state",
        "rest": "rest",
    },
    "after it": {"total": "in use"},
    PEAK: {"peak": "measured", "predicted_peak": "closed form"},
}
"""The columns of the table of memory: group, column, title."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, and what all contenders have in common."""
    table = tables["optimizer_sharding"]
    rows = contenders(OptimizerSharding, table)
    whole = select(rows, contender=UNSHARDED).set_index(CELL)["median"].rename("whole")
    rows = rows.join(whole, on=CELL)
    rows["ratio"] = rows["median"] / rows["whole"]
    why = f"{NOT_MEASURED.capitalize()}{missing(table).removeprefix(NOT_MEASURED)}."
    return {
        "memory": memory_answer(table, why),
        "time": time_answer(table, rows, why),
        "zero": zero_answer(),
        "s": setting(OptimizerSharding, table, rows) if len(rows) else None,
        "size": HANDOUT_SIZE,
    }


def first_cell(rows: DataFrame) -> DataFrame:
    """The cell that the question asks for, two ranks in fp32, or else the first one."""
    return rows[rows["cell"] == rows["cell"].iloc[0]] if len(rows) else rows


def memory_answer(table: DataFrame, why: str) -> Answer:
    """(a) What is in use around the update, and at the peak."""
    rows = memory(table)
    found = with_moments(rows)
    unit, mib = memory_unit_of(rows)
    asked = first_cell(found)
    by_name = {row["contender"]: row for _, row in asked.iterrows()}
    whole, own, both = (by_name.get(name, Series(dtype=float)) for name in (UNSHARDED, HANDOUT, GRADIENTS))

    def amounts(column: str) -> dict[str, float]:
        rows = {"whole": whole, "own": own, "both": both}
        return {name: float(row.get(column, float("nan"))) / mib for name, row in rows.items()}

    counted = bool(found["peak"].notna().any())
    end, peak = amounts("total"), amounts("peak")
    machine = measured_machine({"": table})
    caption = say(
        "Memory of the rank with most in use, training {size} on {machine}, in {unit}; {cell}. "
        + (
            "_Rest_: buckets that are copies, activations, the loss."
            if counted
            else "The allocator counts on GPUs only."
        ),
        size=asked["label"].iloc[0] if len(asked) else None,
        machine=machine,
        unit=unit,
        cell=asked["cell"].iloc[0] if len(asked) else None,
    )
    every = say("The same in every cell, in {unit}, on {machine}.", unit=unit, machine=machine)
    earlier = earlier_cells(OptimizerSharding, table)
    return Answer(
        asked="(a) Memory",
        missing=why,
        verdict=say(
            f"After a step, sharding leaves {{own:{unit}}} of {{whole:{unit}}} in use on each of {{ranks}} ranks.",
            **{name: end[name] for name in ("own", "whole")},
            ranks=int(asked["processes"].iloc[0]) if len(asked) else None,
        ),
        more=paragraph(
            say(
                f"The peak falls from {{whole:{unit}}} to {{own:{unit}}}.",
                **{name: peak[name] for name in ("own", "whole")},
            ),
            say(f"With gradients sharded too, it is {{both:{unit}}}.", both=peak["both"]),
        ),
        evidence=[Captioned(memory_table(asked, mib, earlier, headings=False), caption)],
        reason=memory_reason(asked, own, mib, unit),
        details=[Captioned(memory_table(found, mib, earlier, headings=True), every, long=True)],
    )


def memory_reason(asked: DataFrame, own: Series, mib: float, unit: str) -> Typst:
    """Why the peak falls by less than the state, how near the closed form is, and what PyTorch keeps beside it."""
    error = (asked["peak"] / asked["predicted_peak"] - 1).abs().max()
    theirs = select(asked, family=FOREIGN)
    rest = theirs["rest"].max() / mib
    return paragraph(
        say(
            "The closed forms are $4 P$ bytes each of weights and gradients and $8 P$ of state, divided by $N$ where "
            "they are sharded; measured peaks are within {error:percent} of them.",
            error=error,
        ),
        say(
            "The peak is reached in the backward pass, in which activations stand beside the state; before the update "
            "they are gone."
        )
        if own.get("passes", 0.0) > own.get("update", float("nan"))
        else NOTHING,
        say(
            f"PyTorch's optimizer keeps up to {{rest:{unit}}} besides, copies of gradients in buckets, unless "
            "gradients are views of these.",
            rest=rest,
        )
        if rest > 0.1 * asked["gradients"].max() / mib
        else NOTHING,
    )


def with_moments(rows: DataFrame) -> DataFrame:
    """One row per contender: in use after it, its parts before the update, and after initialization."""
    keys = [*CELL, "contender"]
    first = select(rows, moment=INITIALIZED).set_index(keys)["total"].rename("initialized")
    parts = list(MOMENTS["before the update"])
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)[parts]
    return peaks(rows).drop(columns=parts).join(first, on=keys).join(before, on=keys)


def memory_table(found: DataFrame, mib: float, earlier: set[str], *, headings: bool) -> Table:
    """Memory by moment and part, under a heading for each cell if there are several."""
    columns = {
        group: {name: title for name, title in names.items() if found[name].notna().any()}
        for group, names in MOMENTS.items()
        if group != PEAK or found["peak"].notna().any()
    }
    names = [name for group in columns.values() for name in group]
    body: list[list[str]] = []
    for cell, lines in found.groupby("cell", sort=False):
        if headings:
            body.append([marked_earlier(str(cell), earlier)])
        body += [
            [row["title"], *(NONE if isna(row[name]) else f"{row[name] / mib:.2f}" for name in names)]
            for _, row in lines.iterrows()
        ]
    titles = [title for group in columns.values() for title in group.values()]
    return Table(["", *titles], body, groups=[("", 1), *((group, len(inside)) for group, inside in columns.items())])


def time_answer(table: DataFrame, rows: DataFrame, why: str) -> Answer:
    """(b) The step with and without, in the cell that the question asks for."""
    told = device_bound(rows)
    asked = first_cell(told if len(told) else rows)
    by_name: Mapping[str, Series] = {row["contender"]: row for _, row in asked.iterrows()}
    whole, own, peers = (by_name.get(name) for name in (UNSHARDED, HANDOUT, PEERS))
    against = speed(own, whole)
    steps: dict[str, Any] = (
        {"own": own["median"], "whole": whole["median"]} if own is not None and whole is not None else {"own": None}
    )
    steps |= {"share": abs(1 / against.ratio - 1), "where": asked["cell"].iloc[0]} if against.ratio else {}
    machine = measured_machine({"": table})
    n = int(asked["n"].max()) if len(asked) else None
    caption = say(
        "Training steps of {size} on {machine}: median, 20th and 80th percentile of {n} steps"
        + (r" (\* more than {wide:percent} of the median apart)" if asked["wide"].any() else "")
        + "; phases, timed apart: medians; the optimizer's has the communication of parameters in it.",
        size=asked["label"].iloc[0] if len(asked) else None,
        machine=machine,
        n=n,
        **({"wide": setting(OptimizerSharding, table, rows)["wide_spread"]} if asked["wide"].any() else {}),
    )
    shown = contender_table(OptimizerSharding, asked_rows(table, asked), asked, COLUMNS)
    all_steps = contender_table(OptimizerSharding, table, rows, PROFILE)
    return Answer(
        asked="(b) Step time",
        missing=why,
        verdict=NOTHING
        if against.ratio is None
        else tell(
            against.faster,
            say("Sharding makes the step {share:percent} shorter: {own:ms} against {whole:ms} ({where}).", **steps),
            say("Sharding makes the step {share:percent} longer: {own:ms} against {whole:ms} ({where}).", **steps),
            say("Whether sharding costs time cannot be told: the steps are {why}.", why=against.why_untold),
        ),
        more=over_peers(whole, peers),
        evidence=[Captioned(shown, caption)] if shown else [],
        reason=paragraph(updates(own, whole, peers), theirs_sentence(asked), yours(asked, own)),
        details=[
            Captioned(
                headings_marked(all_steps, earlier_cells(OptimizerSharding, table)),
                f"Training steps in every cell on {machine}, and what a profile of one step on rank 0 shows; "
                "communication includes waits for other ranks. Nothing is concluded from host-bound cells.",
                long=True,
            )
        ]
        if all_steps
        else [],
    )


def asked_rows(table: DataFrame, asked: DataFrame) -> DataFrame:
    """The rows of one cell."""
    return select(table, **{name: asked[name].iloc[0] for name in CELL}) if len(asked) else table.iloc[:0]


def headings_marked(table: Table, earlier: set[str]) -> Table:
    """The table, with the headings of cells that earlier code measured marked."""
    body = [
        [next((f"{row[0]}, earlier code" for name in earlier if row[0].startswith(name)), row[0])]
        if len(row) == 1
        else row
        for row in table.rows
    ]
    return Table(table.columns, body, table.text_columns, table.groups)


def over_peers(whole: Series | None, peers: Series | None) -> Typst:
    """The step over symmetric memory against the unsharded one."""
    against = speed(peers, whole)
    if against.ratio is None or peers is None:
        return NOTHING
    return say(
        "Over symmetric memory it takes {peers:ms}"
        + tell(
            against.faster,
            Typst(", less than unsharded."),
            Typst(", more than unsharded."),
            Typst("; that cannot be told from unsharded."),
        ),
        peers=peers["median"],
    )


def updates(own: Series | None, whole: Series | None, peers: Series | None) -> Typst:
    """What the optimizer's part of the step takes."""
    if own is None or whole is None:
        return NOTHING
    return paragraph(
        say(
            "The optimizer's part takes {own:ms} sharded and {whole:ms} unsharded: a rank updates $1\\/N$ of the "
            "parameters, and then waits for the others'.",
            own=own["optimizer"],
            whole=whole["optimizer"],
        ),
        say("Over symmetric memory it takes {peers:ms}.", peers=None if peers is None else peers["optimizer"]),
    )


def theirs_sentence(asked: DataFrame) -> Typst:
    """What PyTorch's fastest takes."""
    theirs = fastest(asked, names_in(asked, FOREIGN))
    if theirs is None:
        return NOTHING
    return say(
        "PyTorch's fastest ({title}) takes {step:ms}, of which the optimizer's part is {part:ms}.",
        title=theirs["title"].removeprefix("PyTorch's, "),
        step=theirs["median"],
        part=theirs["optimizer"],
    )


def yours(asked: DataFrame, own: Series | None) -> Typst:
    """Each of the reader's own against the handout's scheme as this project implements it."""
    mine = [row for _, row in select(asked, family=OWN).iterrows()]
    return paragraph(*(speed(row, own).sentence(row["title"], "ours, sharded") for row in mine))


def zero_answer() -> Answer:
    """(c) Memory and communication against ZeRO's stage 1, by closed form at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    ours, zero = (SCHEMES[name] for name in ("sharded optimizer", "ZeRO-1"))
    ranks = RANKS[0]
    return Answer(
        asked="(c) Against ZeRO stage 1",
        verdict=say(
            "Sharded state takes the memory of ZeRO stage 1, but {ratio:times} its communication.",
            ratio=ours.sent(whole, ranks) / zero.sent(whole, ranks),
        ),
        more=say(
            "On {ranks} ranks {state:GiB} of training state each, and {sent:GB} sent per step instead of {zero:GB}.",
            ranks=ranks,
            state=ours.memory(whole, ranks).total / GIB,
            sent=ours.sent(whole, ranks) / GB,
            zero=zero.sent(whole, ranks) / GB,
        ),
        evidence=[
            Captioned(
                schemes_table(RANKS),
                f"Training state of a rank and bytes that it sends in a step, by closed form: {HANDOUT_SIZE} with "
                "AdamW in fp32, without activations and buffers.",
            )
        ],
        reason=Typst(
            "ZeRO @rajbhandari2020 shards an fp32 copy of the weights as well, since its weights and gradients are "
            "fp16; here weights are fp32 themselves. Its stage 1 reduce-scatters the gradients, as a rank needs only "
            "those of the parameters that it updates, and all-gathers the parameters: together one all-reduce. The "
            "handout's scheme all-reduces the gradients and then sends the parameters, half as much again. Our second "
            "mode reduces gradients to their owners and frees the others': stage 1's communication, stage 2's memory."
        ),
    )


def schemes_table(ranks: Sequence[int]) -> Table:
    """Memory and communication of each scheme by closed form, at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    body = []
    for name, scheme in SCHEMES.items():
        state, sent = FORMULAS[name]
        body.append(
            [
                name,
                Typst(state),
                *(str(significant(scheme.memory(whole, each).total / GIB)) for each in ranks),
                Typst(sent),
                *(str(significant(scheme.sent(whole, each) / GB)) for each in ranks),
            ]
        )
    numbers = [f"N = {each}" for each in ranks]
    return Table(
        ["", "bytes", *numbers, "bytes", *numbers],
        body,
        groups=[("", 1), ("training state of a rank / GiB", 3), ("sent by a rank in a step / GB", 3)],
    )
