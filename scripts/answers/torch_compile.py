"""Answers to `torch_compile`: attention and the whole Transformer, compiled and eager."""

import math
from itertools import product
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, count, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst, measured
from scripts.views.compiled_attention import TIMES, grid_table, paired
from scripts.views.data import PRECISIONS, first, last, one, ratio, reason, select, size_order
from scripts.views.steps import PASSES, step_table
from scripts.views.verdicts import against

BOTH = ("eager", "compiled")
MODEL: Columns = {
    "": {"size": "{label}", "precision": "{precision}"},
    **{f"{title} / ms": {way: f"{{{way} {title}:.1f}}{{{way} host_bound:star}}" for way in BOTH} for title in PASSES},
    "device busy / ms": {**{way: f"{{{way} device_busy:.1f}}" for way in BOTH}, "ratio": "{work:.2f}×"},
    "compiling": {"cost / s": "{cost:.0f}", "pays off after": "{pays}"},
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    return {"attention": attention(tables["attention"]), "model": model(tables["end_to_end"])}


def attention(table: DataFrame) -> Answer:
    """(a) Plain attention, eager next to compiled."""
    if table["compiled"].nunique() < 2 or not len(pairs := paired(table)):
        return Answer("(a) Attention")
    told, waits = pairs[~pairs["host_bound"]], pairs[pairs["host_bound"]]
    longest = select(told, sequence=told["sequence"].max())
    quick, slow, gains = faster_one(longest["gain"])
    facts = Facts(row=last(longest), quick=quick, slow=slow, gains=gains)
    lowers = bool((longest["peak_memory_compiled"] < longest["peak_memory_eager"]).any())
    return Answer(
        asked="(a) Attention",
        verdict=facts.say(
            "At {row[sequence]} tokens {quick} attention is {gains:span times} as fast as {slow} ({cells}).",
            cells=count(len(longest), "head dimension"),
        )
        or say("Cannot be decided: in every cell, compiled or eager is host-bound."),
        more=facts.say(
            "Compiled attention is slower in {losses} of {all}.",
            "Compiling lowers the peak at d = {row[d]} from {row[peak_memory_eager]:gib} to "
            "{row[peak_memory_compiled]:gib}."
            if lowers
            else "",
            losses=int((told["gain"] < 1).sum()) or "none",
            all=count(len(told), "device-bound shape" if measured(pairs["device_busy_eager"].max()) else "shape"),
        ),
        evidence=Captioned(
            grid_table(table, TIMES),
            "Mean times of plain attention, eager and compiled, by head dimension.",
            legend={"*": "*: host-bound"},
        ),
        reason=say(
            "In {cells} one of the two is host-bound; there, eager attention keeps the device busy {work:span times} "
            "as long as compiled attention.",
            cells=count(len(waits), "shape"),
            work=least_and_most(waits["device_busy_eager"] / waits["device_busy_compiled"]),
        ),
    )


def model(table: DataFrame) -> Answer:
    """(b) The whole model's training step, eager next to compiled, and when compiling pays off."""
    rows = select(table, attention="plain", mode="train_step", cold_start=False)
    tried = select(rows, compiled=True)
    if not len(tried):
        return Answer("(b) The whole Transformer")
    context = int(tried["context"].max())
    lines = both_ways(select(rows, context=context, warmup=int(tried["warmup"].max())), tried)
    pairs = lines[lines["gain"].notna()]
    told = pairs[~pairs["host_bound"].astype(bool)]
    work, step = work_sentence(pairs), step_sentence(told, len(pairs))
    return Answer(
        asked="(b) The whole Transformer",
        verdict=work or step,
        more=say(
            step if work else "",
            "Compiling {row[label]} ({row[precision]}) costs {row[cost]:s} and pays off after {row[pays]} steps.",
            row=last(told[told["pays"] != "never"]),
        ),
        evidence=Captioned(
            grid(lines, MODEL, text_columns=2),
            f"The training step up to each of its phases at context {context}, sums of the phases’ medians.",
            legend={
                "*": "*: host-bound",
                "cost / s": "cost: warm-up time in excess of as many steady-state steps",
                "pays off after": "pays off after: steps that save as much",
                "–": "–: host-bound",
            },
        ),
        reason=say(
            "The eager step launches {fewer:span times} as many kernels and copies, which matters if the host is slow.",
            fewer=least_and_most(pairs["fewer"]),
        ),
    )


def both_ways(rows: DataFrame, tried: DataFrame) -> DataFrame:
    """One row per cell that was run compiled, with both steps' columns, or the reason why one is missing."""
    steps = step_table(rows)
    lines: list[dict[str, Any]] = []
    for size, precision in product(size_order(tried), PRECISIONS):
        cell = {"size": size, "precision": precision}
        known = first(select(tried, **cell))
        if known is None:
            continue
        line = {"label": known["label"], "precision": precision, "message": ""}
        eager, fast = (one(steps, compiled=compiled, **cell) for compiled in (False, True))
        if eager is None or fast is None:
            lines.append(line | {"message": reason(select(rows, compiled=eager is not None, **cell))})
            continue
        cost = compile_seconds(fast)
        pays = steps_to_pay(cost, eager["step"], fast["step"])
        line |= {**eager.add_prefix("eager "), **fast.add_prefix("compiled ")}
        host_bound = bool(eager["host_bound"] or fast["host_bound"])
        told = "–" if cost is None or host_bound else "never" if pays is None else str(pays)
        line |= {"cost": cost, "pays": told, "gain": eager["step"] / fast["step"], "host_bound": host_bound}
        line |= {"speed": against(fast, eager)}
        line |= {"work": ratio(eager["device_busy"], fast["device_busy"])}
        lines.append(line | {"fewer": ratio(eager["launches"], fast["launches"])})
    numbers = ["host_bound", "gain", "speed", "work", "fewer", "pays"]
    return DataFrame(lines, columns=[*dict.fromkeys([*numbers, *(name for line in lines for name in line)])])


def work_sentence(pairs: DataFrame) -> Typst:
    """How much compiling reduces the device's time, which does not depend on the host."""
    gains = [
        say("{gain:span times} ({name})", gain=least_and_most(select(pairs, precision=name)["work"]), name=name)
        for name in reversed(PRECISIONS)
    ]
    return say("Eager steps need {gains:listing} the device time of compiled ones.", gains=list(filter(None, gains)))


def step_sentence(told: DataFrame, cells: int) -> Typst:
    """The gain of the whole step, if it is decided."""
    if not cells:
        return say("No step was timed both eager and compiled.")
    quick, slow, gains = faster_one(told["gain"])
    others = f"{len(told)} of {cells} cells; the others are host-bound"
    where = say("({where})", where=others if len(told) < cells else count(cells, "cell"))
    if len(told) == 1:
        return told["speed"].iloc[0].sentence("the compiled step", "the eager one", where)
    words = "The {quick} step is {gains:span times} as fast as the {slow} one {where}."
    return say(words, quick=quick, slow=slow, gains=gains, where=where) or say(
        "No step is compared: all of {cells} are host-bound.", cells=count(cells, "cell")
    )


def faster_one(gains: Series) -> tuple[str, str, tuple[float, float]]:
    """The way that is faster in the median, the other one, and the range of their ratios; NaN without any."""
    quick, slow = BOTH[::-1] if gains.median() > 1 else BOTH
    return quick, slow, least_and_most(gains if quick == BOTH[1] else 1 / gains)


def compile_seconds(step: Series) -> float | None:
    """The cost of compiling: the warm-up minus the time of as many steady steps, seconds."""
    warmup = step["warmup_seconds"]
    return max(0.0, warmup - step["warmup"] * step["step"] / 1e3) if measured(warmup) else None


def steps_to_pay(cost: float | None, eager: float, compiled: float) -> int | None:
    """The number of steps, of the given ms each, after which compiling has saved its cost in seconds; None: never."""
    return math.ceil(1e3 * cost / (eager - compiled)) if cost is not None and compiled < eager else None
