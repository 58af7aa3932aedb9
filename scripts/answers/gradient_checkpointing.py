"""Answers to `gradient_checkpointing`: the strategy that needs the least memory, and the best segment length."""

from collections.abc import Iterator
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.peak_memory import best_segment, peak
from cs336_systems.accounting.units import MIB
from cs336_systems.sizes import SIZES
from scripts.rendering.answer import Answer, Answers, Captioned, Tables, count, say
from scripts.rendering.markup import Typst
from scripts.views.closed_forms import block_of, step_of
from scripts.views.data import first, last, one, one_model, select
from scripts.views.strategies import sketch, strategies_table
from scripts.views.units import GIB
from scripts.views.verdicts import against

HANDOUT_LAYERS = SIZES["2.7B"].num_layers
"""Blocks of the handout's model, which is used for the strategies if no model was measured."""
METRICS = {"peak": ("peak_memory", "mean"), "step": ("step", "median")}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = one_model(tables["checkpointing"])
    by_segment = segments(table)
    return {
        "strategy": strategy(by_segment),
        "measured": measured(by_segment, select(table, metric="step")),
        "sketch": sketch(),
    }


def segments(table: DataFrame) -> DataFrame:
    """One row per cell, plain attention first: `peak`, GiB, `step`, ms, and `closed`, the closed form's peak."""
    keys = ["attention", "segment"]
    cells = table.drop_duplicates(keys)
    cells = cells.assign(order=cells["attention"] != "plain").sort_values(["order", "segment"])
    for name, (metric, column) in METRICS.items():
        cells = cells.join(select(table, metric=metric).set_index(keys)[column].rename(name).astype(float), on=keys)
    cells["peak"] *= MIB / GIB
    cells["closed"] = [peak(step_of(cell)).total / GIB for _, cell in cells.iterrows()]
    return cells


def bests(by_segment: DataFrame) -> Iterator[dict[str, Any]]:
    """For each attention the row of the segment length with the lowest measured peak, its neighbours' rows, and the row
    without checkpointing.
    """
    for _, rows in by_segment.groupby("attention", sort=False):
        lengths = rows[(rows["segment"] > 0) & rows["peak"].notna()].sort_values("segment")
        if len(lengths):
            place = int(lengths["peak"].argmin())
            yield {
                "row": lengths.iloc[place],
                "shorter": last(lengths[:place]),
                "longer": first(lengths[place + 1 :]),
                "without": one(rows, segment=0),
            }


def strategy(by_segment: DataFrame) -> Answer:
    """Sub-question (a): the strategy that needs the least memory, by closed forms."""
    blocks = {row["attention"]: block_of(row) for _, row in by_segment.drop_duplicates("attention").iterrows()}
    layers = next((block.shape.num_layers for block in blocks.values()), HANDOUT_LAYERS)
    return Answer(
        asked="(a) Strategy with the least memory",
        verdict="Keep only the first block's input: O(1) memory in depth, but N(N + 1)/2 block forward passes.",
        more="Nested halves need O(log N) memory and O(N log N) passes; one level of checkpoints needs "
        "O(√N) memory and 2 N passes.",
        results=Captioned(
            strategies_table(layers, blocks),
            say(
                "Strategies by closed form. Only input, all saved: blocks with only their input, or with all saved "
                "tensors, in memory at the peak. Passes: block forward passes in a step.",
                "Memory: activations with each attention ({row[label]}, context {row[context]}, {row[precision]}).",
                row=first(by_segment),
            ),
        ),
    )


def measured(by_segment: DataFrame, steps: DataFrame) -> Answer:
    """Sub-question (b): one level of checkpoints, measured."""
    cases = list(bests(by_segment))
    if by_segment["step"].isna().all():
        return Answer("(b) Best segment")
    return Answer(
        asked="(b) Best segment",
        verdict=say(
            "Segments of {best:listing} minimize memory ({row[label]}, context {row[context]}, {row[precision]}).",
            best=by_length(cases, "row"),
            row=first(by_segment),
        )
        or in_time(steps),
        more=say(
            "" if cases else "Peak memory is counted on GPUs only.",
            *(
                say("The next {which} segments have {all:listing}.", which=which, all=by_length(cases, which))
                for which in ("shorter", "longer")
            ),
            "Blocks are not split, so no segment is shorter."
            if cases and all(case["row"]["segment"] == 1 for case in cases)
            else "",
        ),
        results="checkpoint_memory",
        reason=say(
            *(closed_form(by_segment, case["row"]) for case in cases[:1]),
            *(
                say(
                    "With {row[attention]} attention, the lowest peak costs {row[step] / without[step]:times} the step "
                    "time; without checkpointing, the peak is {without[peak] / row[peak]:times} as high.",
                    **case,
                )
                for case in cases
            ),
        ),
    )


def in_time(steps: DataFrame) -> Typst:
    """The step with the shortest segments against the one without checkpoints, by their times."""
    steps = select(steps, attention=steps["attention"].iloc[0]).sort_values("segment")
    row = first(steps[steps["segment"] > 0])
    blocks = "each block" if row is None or row["segment"] == 1 else f"every {row['segment']} blocks"
    where = say("({row[label]}, {row[precision]}, {row[attention]} attention)", row=row)
    speed = against(row, first(select(steps, segment=0)))
    return speed.sentence(f"checkpointing {blocks}", "no checkpointing", where)


def by_length(cases: list[dict[str, Any]], which: str) -> list[Typst]:
    """The segments of each length with their peaks: "1 block (59.4 GiB plain, 52.6 GiB flash)"."""
    peaks: dict[int, list[Typst]] = {}
    for row in (case[which] for case in cases if case[which] is not None):
        peaks.setdefault(int(row["segment"]), []).append(say("{row[peak]:GiB} {row[attention]}", row=row))
    short = which == "row" and len(peaks) > 1  # a verdict has no room for more
    return [
        say("{blocks} ({peaks})", blocks=str(length) if short else count(length, "block"), peaks=Typst(", ".join(each)))
        for length, each in peaks.items()
    ]


def closed_form(by_segment: DataFrame, row: Series) -> Typst:
    """The best length by the closed form, and how far measured peaks are from it."""
    block, step = block_of(row), step_of(row)
    use, best = peak(step), best_segment(step)
    return say(
        "Weights, gradients and AdamW's moments take {state:GiB} of the lowest peak with {row[attention]} attention. "
        "With it, a block keeps {times:sig} times the size of its input for the backward pass"
        + (", so longer segments need more memory although they keep fewer inputs" if best == 1 else "")
        + ". By the closed form, the best length is {best}.",
        "Measured peaks (@fig-checkpoint_memory) differ from the closed form by at most {error:percent}.",
        times=block.saved_bytes / block.residual,
        row=row,
        best=best,
        state=(use.parameters + use.gradients + use.optimizer_state) / GIB,
        error=(by_segment["peak"] / by_segment["closed"] - 1).abs().max(),
    )
