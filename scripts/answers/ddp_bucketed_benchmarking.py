"""Answers to `ddp_bucketed_benchmarking`: bucket sizes, and what the model says of them."""

from dataclasses import replace
from math import nan

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say, tell
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.bucket_sizes import bucket_model
from scripts.views.communication import MB, data_size
from scripts.views.comparison import device_bound, duels, fastest, outcome, preferred_cells
from scripts.views.data import select
from scripts.views.data_parallel import elsewhere, why_untold, wrappers

MODEL: Columns = {
    "": "{cell}",
    "handout's assumption": {"size": "{size:sig}", "left": "{left:cut}"},
    "measured backward pass": {"backward": "{backward:sig}", "size": "{known_size:sig}", "left": "{known_left:cut}"},
    "best as measured": {"size": "{bucket_mb}", "exposed": "{exposed:cut}", "stretched": "{stretched:cut}"},
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    swept = [sizes for cell in preferred_cells(device_bound(rows)) if len(sizes := select(cell, contender="bucketed"))]
    return {"sizes": bucket_sizes(table, rows, swept), "model": model(tables["all_reduce"], rows)}


def best_of(sizes: DataFrame) -> Series:
    """The size with the shortest median step."""
    found = fastest(sizes, ["bucketed"])
    assert found is not None
    return found


def in_between(sizes: DataFrame) -> bool | None:
    """Whether a size in between is faster than the smallest and the largest; None if that cannot be told.

    Of sizes that make equally many calls, only the first counts: they are the same program.
    """
    programs = sizes.drop_duplicates("messages") if sizes["messages"].notna().all() else sizes
    if len(programs) < 3:
        return None
    ends = [programs.iloc[0], programs.iloc[-1]]
    middle = best_of(programs.iloc[1:-1])
    found = {outcome(middle, end) for end in ends}
    return True if found == {"slower"} else False if "faster" in found else None


def bucket_sizes(table: DataFrame, rows: DataFrame, swept: list[DataFrame]) -> Answer:
    """Sub-question (a): the step by bucket size, expectation and result."""
    if not swept:
        return Answer("(a) Bucket sizes", missing=why_untold(table, rows))
    asked, best = swept[0], best_of(swept[0])
    others = [say("{row[bucket_mb]} MB, {row[median]:ms} ({row[cell]})", row=row) for row in map(best_of, swept[1:])]
    over = duels(rows, ["bucketed"], ["overlapped"])
    more = asked["peak_memory"].iloc[-1] - asked["peak_memory"].iloc[0]
    steps = [f"{median:.1f}" for median in asked["median"]]
    facts = Facts(
        others=others,
        steps=steps,
        sizes=list(asked["bucket_mb"]),
        small=asked["bucket_mb"].iloc[0],
        more=more if more > 0 else None,
    )
    return Answer(
        asked="(a) Bucket sizes",
        verdict=say(
            tell(
                in_between(asked),
                "As expected, the best size is in between: {best[bucket_mb]} MB, {best[median]:ms} a step",
                "Not as expected: the best size, {best[bucket_mb]} MB ({best[median]:ms} a step), is at an end",
                "No size in between is surely best; {best[bucket_mb]} MB is fastest, {best[median]:ms} a step",
            )
            + " ({best[cell]}).",
            best=best,
        ),
        more=facts.say("Steps with {sizes:listing} MB take {steps:listing} ms."),
        evidence="ddp_bucket_sizes" if any(sizes["exposed"].notna().any() for sizes in swept) else (),
        reason=facts.say(
            "Best in other settings: {others:listing}.",
            same_calls(asked),
            "But calls are not what is exposed: of {best[exposed]:ms} at {best[bucket_mb]} MB, "
            "{best[stretched]:ms} are compute that takes longer next to NCCL's kernels.",
            "Buckets of several gradients are copies: {large} MB takes {more:gib} more memory than {small} MB.",
            *(duel.speed.sentence("bucketed at its best", "overlapped", f"({duel.cell})") for duel in over[:1]),
            elsewhere(over),
            best=best if best["stretched"] > best["exposed"] / 2 else None,
            large=asked["bucket_mb"].iloc[-1],
        ),
    )


def same_calls(sizes: DataFrame) -> Typst:
    """How many calls each size makes."""
    calls = [
        say("{calls:whole} ({sizes:listing} MB)", calls=calls, sizes=list(same["bucket_mb"]))
        for calls, same in sizes.dropna(subset="messages").groupby("messages", sort=False)
    ]
    return say("The sizes make {calls:listing} calls, since a parameter travels in one piece.", calls=calls)


def model(all_reduce: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): the best size by the model, with constants of measured all-reduces."""
    lines = []
    for cell in preferred_cells(device_bound(rows)):
        found = bucket_model(all_reduce, cell)
        if found is not None:
            assumed, known = replace(found, backward_seconds=None), found.backward_seconds is not None
            line = {"size": assumed.best_bucket_size / 1e6, "left": 1e3 * assumed.least_overhead, "model": found}
            line["backward"] = 1e3 * found.backward if known else nan
            line["known_size"] = found.best_bucket_size / 1e6 if known else nan
            line["known_left"] = 1e3 * found.least_overhead if known else nan
            lines.append({**best_of(cell), **line})
    asked = lines[0] if lines else None
    found = asked["model"] if asked else None
    return Answer(
        asked="(b) Model",
        verdict=say(
            "By the model {asked[size]:MB} buckets are best and leave {asked[left]:ms} after backward ({asked[cell]}).",
            asked=asked,
        )
        or say("The best buckets have √(s·w·o) bytes and leave 2√(s·o/w) seconds after the backward pass."),
        more=say("Measured, {asked[bucket_mb]} MB is the best, and {asked[exposed]:ms} are exposed.", asked=asked),
        evidence=Captioned(
            grid(DataFrame(lines), MODEL),
            "Best bucket size and what it leaves after the backward pass, by the model and as measured, MB and ms; "
            "stretched: compute beyond the baseline's in the profiled step.",
        ),
        reason=say(
            "Here s = {size}; the line through the all-reduces gives w = {bandwidth:GB/s} and o = {call:µs}.",
            "The model leaves out that compute slows down next to communication: {asked[stretched]:ms} of what is "
            "exposed.",
            size=data_size(found.size / MB) if found else None,
            bandwidth=found.bandwidth / 1e9 if found else None,
            call=1e6 * found.call_seconds if found else None,
            asked=asked if asked and asked["stretched"] > 0 else None,
        ),
    )
