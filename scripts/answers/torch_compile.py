"""Answers to `torch_compile`: attention and the whole Transformer, compiled and eager."""

from itertools import product

from numpy import ceil
from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.attention import Attention
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import Answer, Answers, Captioned, Tables, count, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst, measured
from scripts.views.compiled_attention import TIMES, attention_cells, grid_table
from scripts.views.data import PRECISIONS, last, one, reason, select, small_to_large
from scripts.views.steps import PASSES, step_table
from scripts.views.verdicts import Speed, against

WAYS = {"eager": False, "compiled": True}
SUFFIXES = (" eager", " compiled")
COLUMNS = {title: title for title in PASSES} | {"training step": "step"}
"""The column of each time by its title: sums of phases, and the whole step as it was timed."""
MODEL: Columns = {
    "": {"size": "{label}", "precision": "{precision}"},
    **{
        f"{title} / ms": {way: f"{{{column} {way}:.1f}}{{{title}, waits {way}:star}}" for way in WAYS}
        for title, column in COLUMNS.items()
    },
    "device busy / ms": {**{way: f"{{device_busy {way}:.1f}}" for way in WAYS}, "ratio": "{work:.2f}×"},
    "compiling": {"cost / s": "{cost:.1f}"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    return {"attention": attention(tables["attention"]), "model": model(tables["end_to_end"])}


def paired(table: DataFrame) -> DataFrame:
    """One row per shape of attention that was measured both ways, with both cells' columns (medians).

    Added: `gain`, the ratio of the times; `host_bound`, whether either is; `work`, the ratio of device times.
    """
    cells = attention_cells(table, "median")
    eager, compiled = (select(cells, compiled=way).drop(columns="compiled") for way in WAYS.values())
    shape = [name for name in parameters(Attention) if name != "compiled"]
    return compared(eager.merge(compiled, on=shape, suffixes=SUFFIXES), "time").dropna(subset="gain")


def compared(pairs: DataFrame, time: str) -> DataFrame:
    """Pairs with `gain` and `work`, eager over compiled in time and in device time, and `host_bound`, for either."""
    return pairs.assign(
        gain=pairs[f"{time} eager"] / pairs[f"{time} compiled"],
        work=pairs["device_busy eager"] / pairs["device_busy compiled"],
        host_bound=pairs["host_bound eager"].eq(True) | pairs["host_bound compiled"].eq(True),
    )


def attention(table: DataFrame) -> Answer:
    """(a) Plain attention, eager next to compiled."""
    pairs = paired(table)
    if not len(pairs):
        return Answer("(a) Attention")
    decided = select(pairs, host_bound=False)
    speeds = [against(*(one_way(pair, way) for way in ("compiled", "eager"))) for _, pair in decided.iterrows()]
    row = last(decided)
    return Answer(
        asked="(a) Attention",
        verdict=speeds[-1].sentence(
            "compiled attention", "eager attention", say("at {row[sequence]} tokens, d = {row[d]}", row=row)
        )
        if speeds
        else say("Not compared: in every cell, compiled or eager attention is host-bound."),
        more=say(
            "Compiling lowers peak memory there from {row[peak_memory eager]:gib} to {row[peak_memory compiled]:gib}."
            if row is not None and row["peak_memory compiled"] < row["peak_memory eager"]
            else "",
            "Over both passes, compiled attention is faster at {wins} of {all}.",
            row=row,
            wins=sum(each.faster is True for each in speeds) if speeds else None,
            all=count(len(decided), "device-bound shape" if measured(pairs["device_busy eager"].max()) else "shape"),
        ),
        results=Captioned(
            grid_table(table, TIMES, "median"),
            "Median times of plain attention, eager and compiled, by head dimension.",
            legend={"*": "*: host-bound (device busy for less than 90 % of the pass)"},
        ),
    )


def one_way(pair: Series, way: str) -> Series:
    """One side of a row of `paired`, as `against` compares it."""
    return Series({"median": pair[f"time {way}"], "samples": pair[f"samples {way}"]})


def model(table: DataFrame) -> Answer:
    """(b) The whole model's training step, eager next to compiled, and when compiling pays off."""
    rows = select(table, attention="plain", mode="train_step", cold_start=False)
    tried = select(rows, compiled=True)
    if not len(tried):
        return Answer("(b) The whole Transformer")
    context = int(tried["context"].max())
    rows = select(rows, context=context, warmup=int(tried["warmup"].max()))
    steps = step_table(rows)
    lines = both_ways(rows, steps, tried)
    pairs = lines.dropna(subset="gain")
    decided = select(pairs, host_bound=False)
    work, step = work_sentence(pairs), step_sentence(decided, steps, len(pairs))
    faster = [bool(speed_of(steps, row).faster) for _, row in decided.iterrows()]
    pays = ceil(1e3 * decided["cost"] / (decided["step eager"] - decided["step compiled"]))
    return Answer(
        asked="(b) The whole Transformer",
        verdict=work or step,
        more=say(
            step if work else "",
            "Compiling {row[label]} ({row[precision]}) takes {row[cost]:s} and pays off after {row[pays]:whole} steps.",
            row=last(select(decided.assign(pays=pays, faster=faster), faster=True)),
        ),
        results=Captioned(
            grid(lines, MODEL, text_columns=2),
            f"Median times of the training step and its phases at context {context}; forward + backward is the sum of "
            "two medians.",
            legend={
                "*": "*: host-bound",
                "cost / s": "cost: warm-up time in excess of the same number of steady-state steps",
            },
        ),
    )


def both_ways(rows: DataFrame, steps: DataFrame, tried: DataFrame) -> DataFrame:
    """One row per cell that was run compiled, with both steps' columns, or the reason why one is missing."""
    keys = ["size", "label", "precision"]
    lines = small_to_large(tried[keys].drop_duplicates())
    eager, fast = (select(steps, compiled=way) for way in WAYS.values())
    lines = lines.merge(eager, how="left", on=keys).merge(fast, how="left", on=keys, suffixes=SUFFIXES)
    lost = [[way for way in WAYS if not measured(line[f"step {way}"])] for _, line in lines.iterrows()]
    waits = {
        f"{title}, waits {way}": host_bound(lines[f"{column} {way}"], lines[f"{title}, busy {way}"])
        for (title, column), way in product(COLUMNS.items(), WAYS)
    }
    warmup = lines["warmup_seconds compiled"] - lines["warmup compiled"] * lines["step compiled"] / 1e3
    return compared(lines.assign(**waits), "step").assign(
        cost=warmup.clip(lower=0),
        message=[
            reason(select(rows, compiled=WAYS[ways[0]], size=line["size"], precision=line["precision"])) if ways else ""
            for ways, (_, line) in zip(lost, lines.iterrows(), strict=True)
        ],
    )


def work_sentence(pairs: DataFrame) -> Typst:
    """How much compiling reduces the device's time, which does not depend on the host."""
    labels = list(dict.fromkeys(pairs["label"]))
    gains: list[Typst] = []
    for name in reversed(PRECISIONS):
        words = (
            "{gain:span times} in {name}" if gains else "{gain:span times} the device time of compiled ones in {name}"
        )
        gains += filter(None, [say(words, gain=least_and_most(select(pairs, precision=name)["work"]), name=name)])
    return say(
        ("Eager steps" if len(labels) > 1 else "Eager steps of {labels:listing}") + " use {gains}.",
        labels=labels,
        gains=Typst(", ".join(gains)),
    )


def speed_of(steps: DataFrame, row: Series) -> Speed:
    """The verdict on a cell's compiled step against its eager one."""
    return against(*(one(steps, compiled=way, **dict(row[["size", "precision"]])) for way in (True, False)))


def step_sentence(decided: DataFrame, steps: DataFrame, cells: int) -> Typst:
    """The gain of the whole step, if it is decided."""
    if not cells:
        return say("No step was timed both eager and compiled.")
    if len(decided) == 1:
        row = decided.iloc[0]
        name = f"the compiled step of {row['label']} ({row['precision']})"
        where = "(other steps are host-bound)" if cells > 1 else ""
        return speed_of(steps, row).sentence(name, "the eager one", where)
    quick, slow, gains = faster_one(decided["gain"])
    where = f"{len(decided)} of {cells} cells; the others are host-bound" if len(decided) < cells else f"{cells} cells"
    words = "The {quick} step is {gains:span times} as fast as the {slow} one in {where}."
    return say(words, quick=quick, slow=slow, gains=gains, where=where) or say(
        "Steps are not compared: in every cell, the compiled or the eager step is host-bound."
    )


def faster_one(gains: Series) -> tuple[str, str, tuple[float, float]]:
    """The way that is faster in the median, the other one, and the range of their ratios; NaN without any."""
    if gains.median() > 1:
        return "compiled", "eager", least_and_most(gains)
    return "eager", "compiled", least_and_most(1 / gains)
