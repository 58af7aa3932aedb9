"""Answers to `training_ladder`: how fast a model trains here, what brings it there, and how far the card's floor is."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.training_ladder import MFU_CONVENTIONS
from cs336_systems.experiments.training_ladder import FIRST, RUNGS
from scripts.checks.training_ladder import SCATTER
from scripts.rendering.answer import NOT_HERE, NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, fixed_point, measured, significant
from scripts.views.data import measured_machine, one
from scripts.views.training_ladder import (
    SHAPE,
    ends,
    fastest,
    floor_table,
    gain_table,
    ladders,
    losses,
    rung_table,
    utilization,
)

NEEDS_GPU = "Not measured: a processor, which other programs share, tells nothing of it."
WORTH = 0.02
"""Share of a step that a rung must save to be recommended: less lies between two launches."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = tables["training_ladder"]
    rungs = rung_table(table)
    missing = NEEDS_GPU if len(rungs) else NOT_HERE
    rungs = rungs[rungs["gpu"] != ""]
    found = ends(rungs)
    always = {
        "fastest": how_fast(table, rungs, found, missing),
        "learning": learning(table),
        "measured": len(rungs) > 0,
    }
    if not len(rungs):
        return always
    return always | {
        "sizes": sizes(rungs),
        "advice": advice(table, rungs, found),
        "gains": gains(table, found),
    }


def how_fast(table: DataFrame, rungs: DataFrame, found: list[DataFrame], missing: str) -> Answer:
    """The fastest step of the largest model that was measured from the first rung on."""
    largest = found[-1] if found else None
    best = fastest(largest) if largest is not None else None
    first = largest.iloc[0] if largest is not None else None
    parts = floor_of(table, best)
    return Answer(
        asked="How fast, and how far from the floor",
        verdict=NOTHING
        if best is None
        else say(
            "One {machine} trains {size} in {step:ms} per step, {over:times} its floor.",
            machine=measured_machine({"": table}),
            size=best["label"],
            step=best["step"],
            over=best["over"],
        ),
        more=NOTHING
        if best is None or first is None
        else paragraph(
            say(
                "That is {tokens} tokens per second on {batch} × {context} tokens, {gain:times} the first step's.",
                tokens=round(best["tokens"]),
                batch=int(best["batch_size"]),
                context=int(best["context"]),
                gain=first["step"] / best["step"],
            ),
            say("The matmuls reach {mfu:percent} of the dense bf16 peak.", mfu=best["utilization"]),
        ),
        evidence=["ladder"] if found else [],
        reason=paragraph(
            NOTHING
            if parts is None
            else say(
                "The floor is what the parts of a bf16 step take alone, in the same job: matmuls {matmuls:ms}, "
                "attention {attention:ms}, the update {update:ms}, and norms and the rest {rest:ms}, which is their "
                "bytes at a copy's speed.",
                matmuls=parts["matmuls"],
                attention=parts["attention"],
                update=parts["update"],
                rest=parts["norms and elementwise"],
            ),
            conventions(best),
        ),
        details=[Captioned(rung_rows(rungs), RUNG_CAPTION, long=True)] if len(rungs) else [],
        missing=missing,
    )


def floor_of(table: DataFrame, row: Series | None) -> Series | None:
    """The parts of the floor below a rung."""
    if row is None:
        return None
    return one(floor_table(table), **{name: row[name] for name in SHAPE})


def conventions(best: Series | None) -> Any:
    """The same step in each convention of counting FLOPs."""
    if best is None or not measured(best["utilization"]):
        return NOTHING
    shares = [
        say(
            "{share:percent} ({name})",
            share=utilization(best, embedding=embedding, causal=causal),
            name=name,
        )
        for name, (embedding, causal) in MFU_CONVENTIONS.items()
    ]
    return say("Counted in other ways, the same step reaches {shares:listing}.", shares=shares[1:])


def sizes(rungs: DataFrame) -> Answer:
    """First, fastest and floor of each cell."""
    body, bests = [], []
    for ladder in ladders(rungs):
        first, best = ladder.iloc[0], fastest(ladder)
        bests.append(best)
        body.append(
            [
                best["label"],
                f"{best['batch_size']} × {best['context']}",
                first["title"] if first["rung"] != FIRST.name else "fp32",
                str(significant(first["step"])),
                best["title"],
                str(significant(best["step"])),
                fixed_point(best["floor"], 1),
                fixed_point(best["over"], 2),
                fixed_point(100 * best["utilization"] if measured(best["utilization"]) else None, 1),
                str(round(best["tokens"])),
                fixed_point(1e3 * best["joules"], 1),
            ]
        )
    titles = ["", "batch", "first", "ms", "fastest", "ms", "floor / ms", "× floor", "MFU / %", "tokens/s", "mJ/token"]
    told = DataFrame(bests).dropna(subset=["over"]) if bests else DataFrame(columns=["over"])
    nearest = told.sort_values("over").iloc[0] if len(told) else None
    return Answer(
        asked="All sizes",
        verdict=NOTHING
        if nearest is None
        else say(
            "The fastest steps take {over:span times} their floors ({cells}).",
            over=[told["over"].min(), told["over"].max()],
            cells=count(len(told), "cell"),
        ),
        evidence=[Captioned(Table(titles, body, text_columns=3), SIZES_CAPTION)] if body else [],
        reason=NOTHING
        if nearest is None
        else paragraph(
            say(
                "The closest is {size} with {batch} × {context} tokens.",
                size=nearest["label"],
                batch=int(nearest["batch_size"]),
                context=int(nearest["context"]),
            ),
            in_fp8(rungs, bests[-1]),
        ),
    )


def in_fp8(rungs: DataFrame, best: Series) -> Any:
    """What FP8, which is apart from the ladder, gives where the fastest step of a cell is known."""
    row = one(rungs, rung="fp8", **{name: best[name] for name in SHAPE})
    return (
        NOTHING
        if row is None
        else say(
            "FP8, which is less exact and not among them, takes {step:ms} for {size} with {batch} × {context} tokens, "
            "against {best:ms}.",
            step=row["step"],
            size=row["label"],
            batch=int(row["batch_size"]),
            context=int(row["context"]),
            best=best["step"],
        )
    )


def advice(table: DataFrame, rungs: DataFrame, found: list[DataFrame]) -> Answer:
    """What to do first, by what each rung saves of the step before it."""
    shares = {
        ladder["label"].iloc[0]: worth_doing(gain_table(table, ladder).set_index("title")["gain"], ladder)
        for ladder in found
    }
    largest = found[-1]["label"].iloc[0] if found else None
    order = list(shares[largest]) if largest else []
    left = left_out(rungs, found)
    return Answer(
        asked="What to do first",
        verdict=say("For {size} do first: {order:listing}.", size=largest, order=order[:2]) if order else NOTHING,
        more=NOTHING
        if not order
        else say("Then what saves at least {worth:percent} of a step: {order:listing}.", worth=WORTH, order=order[2:]),
        reason=paragraph(
            *(
                say("For {size} the order is {order:listing}.", size=size, order=list(each))
                for size, each in shares.items()
                if size != largest
            ),
            say("Taken out of the last rung, alone, each would cost: {left:listing}.", left=left),
        ),
    )


def worth_doing(gained: Series, ladder: DataFrame) -> Mapping[str, float]:
    """Rungs in the order of what they save, those that save less than WORTH of the fastest step left out."""
    least = WORTH * fastest(ladder)["step"]
    return gained[gained > least].sort_values(ascending=False).to_dict()


def left_out(rungs: DataFrame, found: list[DataFrame]) -> list[Any]:
    """What the last rung loses without each of the others, for the largest model."""
    if not found:
        return []
    first = found[-1].iloc[0]
    cell = rungs[(rungs[["size", "batch_size", "context"]] == first[["size", "batch_size", "context"]]).all(axis=1)]
    steps = cell.set_index("rung")["step"]
    if "overlap" not in steps:
        return []
    without = {name: rung.without for name, rung in RUNGS.items() if rung.without and name in steps}
    return [
        say("{title} {cost:ms}", title=RUNGS[taken].title, cost=steps[name] - steps["overlap"])
        for name, taken in without.items()
    ]


def gains(table: DataFrame, found: list[DataFrame]) -> Answer:
    """Each rung's gain next to its closed form."""
    tables = {ladder["label"].iloc[0]: gain_table(table, ladder) for ladder in found}
    titles = list(dict.fromkeys(title for each in tables.values() for title in each["title"]))
    body = []
    for title in titles:
        line = [title]
        for each in tables.values():
            row = one(each, title=title)
            pair = (None, None) if row is None else (row["gain"], row["expected"])
            line += [fixed_point(value, 1) for value in pair]
        body.append(line)
    known = pandas.concat([each.dropna() for each in tables.values()]) if tables else DataFrame(columns=["gain"])
    reached = int((known["gain"] >= 0.5 * known["expected"]).sum()) if len(known) else 0
    groups = [("", 1), *((label, 2) for label in tables)]
    return Answer(
        asked="Gains and closed forms",
        verdict=say(
            "{reached} of {all} gains reach half of what their closed forms promise.", reached=reached, all=len(known)
        )
        if len(known)
        else NOTHING,
        evidence=[
            Captioned(Table(["", *["gain / ms", "expected / ms"] * len(tables)], body, groups=groups), GAINS_CAPTION)
        ]
        if body
        else [],
        reason=say(
            "The closed forms count what the rung no longer computes or moves: FLOPs at the rate of the matmuls "
            "alone, bytes at a copy's speed. That of the graph is the time for which the device waited for the host in "
            "the step before; that of the update under the backward pass is the whole update, as if it were free."
        )
        if body
        else NOTHING,
    )


def learning(table: DataFrame) -> Answer:
    """Whether the rungs learn as fp32 does."""
    found = losses(table)
    exact, others = one(found, rung=FIRST.name), found[~found["rung"].isin([FIRST.name, "fp8"])]
    alike = None
    if exact is not None and len(others):
        alike = bool(((others["loss"] - exact["loss"]).abs() <= SCATTER * exact["std"]).all())
    body = [
        [
            row["title"]
            + (f" (without {RUNGS[RUNGS[row['rung']].without].title})" if RUNGS[row["rung"]].without else ""),
            fixed_point(row["loss"], 4),
            fixed_point(row["std"], 4),
            str(int(row["n"])),
            fixed_point(100 * row["error"], 2),
            {1.0: "yes", 0.0: "no"}.get(row["identical"], "–"),
        ]
        for _, row in found.iterrows()
    ]
    titles = ["", "loss / nat", "std", "seeds", "gradients' error / %", "same bits"]
    return Answer(
        asked="Does it learn",
        verdict=tell(
            alike,
            say("All {rungs} later rungs learn as fp32 does, within the scatter of its seeds.", rungs=len(others)),
            say("Not all of {rungs} rungs end within the scatter of fp32's seeds.", rungs=len(others)),
        ),
        evidence=[Captioned(Table(titles, body), LEARNING_CAPTION)] if body else [],
        reason=NOTHING
        if exact is None
        else say(
            "A small model learns a Markov chain, whose entropy no loss can go below. Scatter: {scatter} standard "
            "deviations over {seeds} seeds in fp32. Gradients of a first step are compared with fp32's.",
            scatter=SCATTER,
            seeds=int(exact["n"]),
        ),
    )


def rung_rows(rungs: DataFrame) -> Table:
    """All rungs of all cells."""
    body = [
        [
            row["label"],
            f"{row['batch_size']} × {row['context']}",
            row["title"] if not RUNGS[row["rung"]].without else f"last rung, {row['title']}",
            fixed_point(row["step"], 2),
            f"{fixed_point(row['p20'], 2)}–{fixed_point(row['p80'], 2)}",
            str(int(row["n"])),
            fixed_point(row["device_busy"], 2),
            fixed_point(row["launches"], 0),
            fixed_point(row["over"], 2),
            fixed_point(100 * row["utilization"] if measured(row["utilization"]) else None, 1),
            fixed_point(row["energy"], 1),
            fixed_point(row["peak_memory"] / 1024, 1),
            fixed_point(row["setup"], 1),
        ]
        for _, row in rungs.iterrows()
    ]
    titles = ["", "batch", "rung", "step / ms", "p20–p80", "n", "busy / ms", "launches", "× floor", "MFU / %", "J"]
    return Table([*titles, "peak / GiB", "set-up / s"], body, text_columns=3)


RUNG_CAPTION = (
    "Every rung of every cell: medians; floor: the parts of a bf16 step alone; MFU: FLOPs of matmuls without the "
    "embedding and of causal attention over the dense bf16 peak, in fp32 too; J: energy of a step."
)
SIZES_CAPTION = (
    "The first and the fastest rung measured of each cell, medians of n steps (web edition), and the sum of what the "
    "parts of a bf16 step take alone. MFU as in the text; mJ per token by the driver's counter."
)
GAINS_CAPTION = (
    "What each rung saves of the step before it (fused passes: of the eager one), and what its closed form promises at "
    "the rates measured in the same job. –: no closed form, or not measured."
)
LEARNING_CAPTION = (
    "Losses after a short training, mean of the last steps; relative error of all gradients of one step against fp32; "
    "whether two trainings end with the same bits."
)
