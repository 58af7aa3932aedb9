"""Answers to `gradient_checkpointing`: the strategy of least memory, and the best segment length by measurement."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.checkpointing import best_segment
from cs336_systems.accounting.units import MIB
from cs336_systems.sizes import SIZES
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Tile, Typst, escape, fixed, mean_std, times
from scripts.views.closed_forms import block_of, step_of
from scripts.views.data import one, one_model, ratio, reason, select, statistic
from scripts.views.strategies import sketch, strategies_table
from scripts.views.units import GIB

HANDOUT_LAYERS = SIZES["2.7B"].num_layers
"""Of the handout's model, which strategies are counted for where no model was measured."""
ASKED = "(b) Best segment"
NOTICEABLE = 1.005
"""A clock that falls by a larger factor is named."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = one_model(tables["checkpointing"])
    found = segments(table)
    return {"strategy": strategy(found), "measured": measured(table, found), "sketch": sketch(), "segments": found}


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The largest saving by checkpointing among the measured models."""
    cases = [best for best in bests(found["segments"]).values() if best["saving"]]
    if not cases:
        return []
    best = max(cases, key=lambda case: case["saving"])
    where = escape(f"{best['attention']} attention, at {times(best['slowdown'])} the step time")
    meaning = Typst(f"smaller peak memory by activation checkpointing ({where})")
    return [Tile(times(best["saving"]), meaning, "saving by checkpointing")]


def segments(table: DataFrame) -> DataFrame:
    """One row per cell, plain attention first: what was measured, in MiB, ms and MHz, and the closed form's peak."""
    cells = table.drop_duplicates(["attention", "segment"])
    cells = cells.assign(order=cells["attention"] != "plain").sort_values(["order", "segment"])
    metrics = {
        "saved": ("saved_for_backward", "mean"),
        "before": ("memory_before_backward", "mean"),
        "peak": ("peak_memory", "mean"),
        "step": ("step", "median"),
        "std": ("step", "std"),
        "clock": ("sm_clock", "median"),
    }
    for name, (metric, column) in metrics.items():
        values = [
            statistic(table, column, metric=metric, attention=attention, segment=segment)
            for attention, segment in zip(cells["attention"], cells["segment"], strict=True)
        ]
        cells[name] = DataFrame({name: values}, index=cells.index, dtype=float)
    cells["closed"] = [step_of(cell).peak / MIB for _, cell in cells.iterrows()]
    cells["lost"] = [reason(table, attention=row["attention"], segment=row["segment"]) for _, row in cells.iterrows()]
    return cells


def bests(found: DataFrame) -> dict[str, dict[str, Any]]:
    """For each attention the segment of least measured peak, its neighbours, and what it saves and costs."""
    cases = {}
    for attention, rows in found.groupby("attention", sort=False):
        lengths = rows[(rows["segment"] > 0) & rows["peak"].notna()].sort_values("segment")
        if not len(lengths):
            continue
        row = lengths.sort_values("peak", kind="stable").iloc[0]
        without = one(rows, segment=0)
        against = {name: None if without is None else without[name] for name in ("peak", "step", "clock")}
        cases[str(attention)] = {
            "attention": attention,
            "best": int(row["segment"]),
            "row": row,
            "shorter": lengths[lengths["segment"] < row["segment"]].tail(1),
            "longer": lengths[lengths["segment"] > row["segment"]].head(1),
            "saving": ratio(against["peak"], row["peak"]),
            "slowdown": ratio(row["step"], against["step"]),
            "slower_clock": ratio(against["clock"], row["clock"]) or 1.0,
            "clock": against["clock"],
        }
    return cases


def strategy(found: DataFrame) -> Answer:
    """Sub-question (a): the strategy of least memory, by closed forms."""
    blocks = {row["attention"]: block_of(row) for _, row in found.drop_duplicates("attention").iterrows()}
    layers = next((block.shape.num_layers for block in blocks.values()), HANDOUT_LAYERS)
    caption = (
        "Strategies by closed forms: memory and forward passes of blocks in a step, kept inputs and wholly saved "
        f"blocks at the peak{', and the memory of this model by attention' if blocks else ''}."
    )
    return Answer(
        asked="(a) Strategy of least memory",
        verdict=Typst("Keep only the first block's input: O(1) memory in depth, but N(N + 1)/2 forward passes."),
        more=Typst("Nested halves need O(log N) memory and O(N log N) passes; one level needs O(√N) and 2 N."),
        evidence=[Captioned(strategies_table(layers, blocks), caption)],
    )


def measured(table: DataFrame, found: DataFrame) -> Answer:
    """Sub-question (b): one level of checkpoints, measured."""
    cases = bests(found)
    if not len(found) or found["step"].isna().all():
        return Answer(ASKED, NOTHING)
    first = found.iloc[0]
    evidence = ["checkpoint_memory"]
    details = [Captioned(segments_table(found), segments_caption(first, table))]
    if not cases:
        return Answer(
            ASKED,
            say(
                "By closed form segments of {best} need the least memory; this machine counts no peaks.",
                best=best_segment(block_of(first), int(first["vocab_size"])),
            ),
            evidence=evidence,
            details=details,
        )
    return Answer(
        asked=ASKED,
        verdict=say(
            "Segments of {best:listing} are best.",
            best=[
                say("{length} with {name} attention ({size:GiB})", length=case["best"], name=name, size=peak_of(case))
                for name, case in cases.items()
            ],
        ),
        more=paragraph(
            *(neighbours(cases, which) for which in ("shorter", "longer")),
            say(
                "A block is not split, so none is shorter." if all(case["best"] == 1 for case in cases.values()) else ""
            ),
        ),
        evidence=evidence,
        reason=paragraph(closed_form(found, cases), cost(cases), rivals(cases)),
        details=details,
    )


def peak_of(case: Mapping[str, Any]) -> float:
    """The peak with an attention's best segments, GiB."""
    return float(case["row"]["peak"] * MIB / GIB)


def neighbours(cases: Mapping[str, Mapping[str, Any]], which: str) -> Typst:
    """The peaks of the next shorter or longer segments measured."""
    sizes = [
        say("{size:GiB} ({name}, {length})", size=row["peak"] * MIB / GIB, name=name, length=str(row["segment"]))
        for name, case in cases.items()
        for _, row in case[which].iterrows()
    ]
    return say("The next {which} segments peak at {sizes:listing}.", which=which, sizes=sizes)


def closed_form(found: DataFrame, cases: Mapping[str, Mapping[str, Any]]) -> Typst:
    """What the closed form says of the best length, and how far measured peaks are from it."""
    row = next(iter(cases.values()))["row"]
    cell = found.loc[(found["attention"] == row["attention"])].iloc[0]
    block, vocabulary = block_of(cell), int(cell["vocab_size"])
    best = best_segment(block, vocabulary)
    step = replace(step_of(cell), segment=best)
    return paragraph(
        say(
            "Weights, gradients and AdamW's moments take {state:GiB} of the peak. A block saves {times:sig} times its "
            "input ({attention}), so longer segments cost more than the inputs that they spare; the closed form's best "
            "of all lengths is {best}.",
            state=step.state / GIB,
            times=block.saved_bytes / block.residual,
            attention=row["attention"],
            best=best,
        ),
        say(
            "Measured peaks (@fig-checkpoint_memory) differ from it by at most {error:percent}.",
            error=(found["peak"] / found["closed"] - 1).abs().max(),
        ),
    )


def cost(cases: Mapping[str, Mapping[str, Any]]) -> Typst:
    """What recomputing costs, and how much of it is a lower clock."""
    sentences = []
    for case in cases.values():
        sentences += [
            say(
                "With {attention} attention a step then takes {slowdown:times} as long as without checkpointing, which "
                "peaks {saving:times} as high.",
                attention=case["attention"],
                slowdown=case["slowdown"],
                saving=case["saving"],
            ),
            say(
                "{clock:times} of that is the SM clock, which falls from {fast:MHz} to {slow:MHz}.",
                clock=case["slower_clock"] if case["saving"] and case["slower_clock"] > NOTICEABLE else None,
                fast=case["clock"],
                slow=case["row"]["clock"],
            ),
        ]
    return paragraph(*sentences)


def rivals(cases: Mapping[str, Mapping[str, Any]]) -> Typst:
    """Flash attention against plain, both with their best segments."""
    if not {"plain", "flash"} <= cases.keys():
        return NOTHING
    plain, flash = (cases[name]["row"] for name in ("plain", "flash"))
    faster, lower = ratio(plain["step"], flash["step"]) or 1, peak_of(cases["plain"]) - peak_of(cases["flash"])
    return say(
        "At its best flash attention is {faster:times} as fast as plain attention and peaks {lower:GiB} lower.",
        faster=faster if faster > 1 else None,
        lower=lower if lower > 0 else None,
    )


def segments_caption(first: Any, table: DataFrame) -> str:
    """The caption of the table of all lengths."""
    steps = select(table, metric="step")["n"].max()
    return (
        f"Memory and time by segment length: {first['label']}, context {first['context']}, {first['precision']}. "
        f"Saved: between the passes, weights left out; one observation each. Step: median ± std of {steps:.0f}."
    )


def segments_table(found: DataFrame) -> Table:
    """Memory in GiB and time of every cell."""
    titles = {"saved": "saved", "before": "before backward", "peak": "peak", "closed": "closed form"}
    titles = {name: title for name, title in titles.items() if found[name].notna().any()}
    columns = [fixed(list(found[name] * MIB / GIB)) for name in titles]
    spent = mean_std(list(zip(found["step"], found["std"], strict=True)))
    body = [
        [
            row["attention"],
            str(row["segment"] or "none"),
            *(column[place] or row["lost"] for column in columns),
            spent[place] or row["lost"],
        ]
        for place, (_, row) in enumerate(found.iterrows())
    ]
    header = ["attention", "segment", *(f"{title} / GiB" for title in titles.values()), "step / ms"]
    return Table(header, body, text_columns=2)
