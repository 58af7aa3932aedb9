"""Answers to `ddp_bucketed_benchmarking`: bucket sizes, and what the model says of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say, tell
from scripts.rendering.markup import Table, Typst, significant
from scripts.views.bucket_sizes import bucket_model
from scripts.views.communication import MB, data_size
from scripts.views.comparison import Duel, device_bound, duels, fastest, outcome, preferred_cells
from scripts.views.comparison_tables import fixed
from scripts.views.data import select
from scripts.views.data_parallel import elsewhere, every_row, told, why_untold, wrappers


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
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
        return Answer("(a) Bucket sizes", NOTHING, missing=why_untold(table, rows))
    asked, best = swept[0], best_of(swept[0])
    said = {"size": best["bucket_mb"], "step": best["median"], "cell": best["cell"]}
    every = every_row(table, rows, ["bucketed"])
    return Answer(
        asked="(a) Bucket sizes",
        verdict=tell(
            in_between(asked),
            say("As expected, the best size is in between: {size} MB, {step:ms} a step ({cell}).", **said),
            say("Not as expected: the best size, {size} MB ({step:ms} a step), is at an end ({cell}).", **said),
            say("No optimum in between can be told; {size} MB is the best, {step:ms} a step ({cell}).", **said),
        ),
        more=say(
            "Best elsewhere: {others:listing}.",
            others=[
                say(
                    "{size} MB, {step:ms} ({cell})",
                    size=other["bucket_mb"],
                    step=other["median"],
                    cell=other["cell"],
                )
                for other in map(best_of, swept[1:])
            ],
        ),
        evidence=["ddp_bucket_sizes"] if asked["exposed"].notna().any() else [Captioned(every, EVERY)] if every else [],
        reason=paragraph(
            Typst(
                "Expected: small buckets pay for many calls, large ones start late, so exposed communication falls and "
                "rises again."
            ),
            same_calls(asked),
            say(
                "But calls are not what is exposed: of {exposed:ms} at {size} MB, {stretched:ms} are compute that "
                "takes longer next to NCCL's kernels.",
                exposed=best["exposed"],
                size=best["bucket_mb"],
                stretched=best["stretched"] if best["stretched"] > best["exposed"] / 2 else None,
            ),
            copies(asked),
            against_overlapped(duels(rows, ["bucketed"], ["overlapped"])),
            Typst(
                "Cheaper calls would favour small buckets; a backward pass that makes gradients faster than they "
                "travel, few large ones."
            ),
        ),
        details=[Captioned(every, EVERY, long=True)] if every else [],
    )


EVERY = "Buckets from small to large in every cell measured."


def same_calls(sizes: DataFrame) -> Typst:
    """How many calls each size makes."""
    calls = [
        say("{calls} ({sizes:listing} MB)", calls=int(same["messages"].iloc[0]), sizes=list(same["bucket_mb"]))
        for _, same in sizes.dropna(subset="messages").groupby("messages", sort=False)
    ]
    return say("The sizes make {calls:listing} calls, since a parameter travels in one piece.", calls=calls)


def copies(sizes: DataFrame) -> Typst:
    """What buckets of several gradients cost in memory."""
    more = (sizes["peak_memory"].iloc[-1] - sizes["peak_memory"].iloc[0]) / 1024
    return say(
        "Buckets of several gradients are copies: {size} MB takes {more:GiB} more memory than {small} MB.",
        size=sizes["bucket_mb"].iloc[-1],
        small=sizes["bucket_mb"].iloc[0],
        more=more if more > 0 else None,
    )


def against_overlapped(found: list[Duel]) -> Typst:
    """The best buckets against no buckets."""
    if not found:
        return NOTHING
    return paragraph(told(found[0], "bucketed at its best", "overlapped", where=True), elsewhere(found))


def model(all_reduce: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): the best size by the model, with constants of measured all-reduces."""
    body, first = [], None
    for cell in preferred_cells(device_bound(rows)):
        found = bucket_model(all_reduce, cell)
        if found is None:
            continue
        assumed, best = replace(found, backward_seconds=None), best_of(cell)
        first = first or (assumed, best)
        known = found.backward_seconds is not None
        body.append(
            [
                best["cell"],
                str(significant(assumed.best_bucket_size / 1e6)),
                fixed(1e3 * assumed.least_overhead),
                str(significant(1e3 * found.backward)) if known else "–",
                str(significant(found.best_bucket_size / 1e6)) if known else "–",
                fixed(1e3 * found.least_overhead) if known else "–",
                best["bucket_mb"],
                fixed(best["exposed"]),
                fixed(best["stretched"]),
            ]
        )
    groups = [("", 1), ("handout's assumption", 2), ("measured backward pass", 3), ("best as measured", 3)]
    header = ["", "size", "left", "backward", "size", "left", "size", "exposed", "stretched"]
    return Answer(
        asked="(b) Model",
        verdict=say("The best buckets have √(s·w·o) bytes and leave 2√(s·o/w) seconds after the backward pass.")
        if first is None
        else say(
            "By the model {size:MB} buckets are best and leave {left:ms} after backward ({cell}).",
            size=first[0].best_bucket_size / 1e6,
            left=1e3 * first[0].least_overhead,
            cell=first[1]["cell"],
        ),
        more=NOTHING
        if first is None
        else say(
            "Measured, {size} MB is the best, and {exposed:ms} are exposed.",
            size=first[1]["bucket_mb"],
            exposed=first[1]["exposed"],
        ),
        evidence=[
            Captioned(
                Table(header, body, groups=groups),
                "Best bucket size and what it leaves after the backward pass, by the model and as measured, MB and ms; "
                "stretched: compute beyond the baseline's in the profiled step.",
            )
        ]
        if body
        else [],
        reason=NOTHING
        if first is None
        else paragraph(
            say(
                "Here s = {size}; the line through the all-reduces gives w = {bandwidth:GB/s} and o = {call:µs}.",
                size=data_size(first[0].size / MB),
                bandwidth=first[0].bandwidth / 1e9,
                call=1e6 * first[0].call_seconds,
            ),
            say(
                "The model leaves out that compute slows down next to communication: {stretched:ms} of what is "
                "exposed.",
                stretched=first[1]["stretched"] if first[1]["stretched"] > 0 else None,
            ),
        ),
    )
