"""Answers to `ddp_bucketed_benchmarking`: bucket sizes, measured and by the model."""

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, choose, count, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.bucket_sizes import bucket_model
from scripts.views.comparison import device_bound, duels, fastest, preferred_cells
from scripts.views.data import select
from scripts.views.data_parallel import elsewhere, why_missing, wrappers
from scripts.views.verdicts import LEAST, against

MODEL: Columns = {
    "": "{cell}",
    "model": {"size / MB": "{size:sig}", "exposed / ms": "{left:cut}"},
    "measured": {"size / MB": "{bucket_mb}", "exposed / ms": "{exposed:cut}", "stretched / ms": "{stretched:cut}"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    swept = [sizes for cell in preferred_cells(device_bound(rows)) if len(sizes := select(cell, contender="bucketed"))]
    return {"sizes": bucket_sizes(table, rows, swept), "model": model(tables["all_reduce"], rows)}


def best_of(sizes: DataFrame) -> Series:
    """The size with the shortest median step."""
    best = fastest(sizes, ["bucketed"])
    assert best is not None
    return best


def in_between(sizes: DataFrame) -> bool | None:
    """Whether a size in between is faster than the smallest and the largest; None if that cannot be decided, or if the
    size makes no difference that two decimals of a ratio show.

    Sizes that make equally many calls are the same program; only the first counts.
    """
    programs = sizes.drop_duplicates("messages") if sizes["messages"].notna().all() else sizes
    if len(programs) < 3 or sizes["median"].max() < LEAST * sizes["median"].min():
        return None
    middle = best_of(programs.iloc[1:-1])
    faster = {against(middle, programs.iloc[end]).faster for end in (0, -1)}
    return True if faster == {True} else False if False in faster else None


def bucket_sizes(table: DataFrame, rows: DataFrame, swept: list[DataFrame]) -> Answer:
    """Sub-question (a): the step by bucket size, expectation and result."""
    if not swept:
        return Answer("(a) Bucket sizes", missing=why_missing(table, rows))
    asked, best = swept[0], best_of(swept[0])
    holds = [in_between(sizes) for sizes in swept]
    over = sorted(duels(rows, ["bucketed"], ["overlapped"]), key=lambda duel: duel.speed.faster is None)
    shorter = Series([sizes["compute"].iloc[0] - sizes["compute"].iloc[-1] for sizes in swept]).dropna()
    apart = asked["median"].max() / asked["median"].min()
    facts = Facts(
        best=best,
        slowed=best if best["stretched"] > best["exposed"] / 2 else None,
        others=[
            say("{row[median]:ms} with {row[bucket_mb]} MB ({row[cell]})", row=row) for row in map(best_of, swept[1:])
        ],
        apart=apart - 1,
        confirmed=holds.count(True),
        settings=len(holds),
        steps=[f"{median:.1f}" for median in asked["median"]],
        sizes=list(asked["bucket_mb"]),
        small=asked.iloc[0],
        large=asked.iloc[-1],
        shorter=least_and_most(shorter) if (shorter > 0).all() else None,
        stretches=count(len(shorter), "profiled setting"),
    )
    return Answer(
        asked="(a) Bucket sizes",
        verdict=facts.say(
            choose(
                holds[0],
                "As expected, an intermediate size is best: {best[bucket_mb]} MB, {best[median]:ms}"
                if all(holds)
                else "An intermediate size is best: {best[bucket_mb]} MB, {best[median]:ms}",
                "Unexpectedly, an extreme size is best: {best[bucket_mb]} MB, {best[median]:ms}",
                "Unexpectedly, bucket size hardly matters: steps differ by at most {apart:percent}"
                if 1 < apart < LEAST
                else "No size is clearly best; {best[bucket_mb]} MB has the shortest median, {best[median]:ms}",
            )
            + " ({best[cell]})."
        ),
        more=facts.say(
            "With buckets of {sizes:listing} MB, steps take {steps:listing} ms.",
            "An intermediate size is best, as expected, in {confirmed} of {settings} settings."
            if holds[0] and not all(holds)
            else "",
        ),
        results="ddp_bucket_sizes" if any(sizes["exposed"].notna().any() for sizes in swept) else (),
        reason=facts.say(
            "Elsewhere the shortest step takes {others:listing}.",
            "Compute favours large buckets: with {large[bucket_mb]} MB it takes {shorter:span ms} less than with "
            "{small[bucket_mb]} MB ({stretches}).",
            same_calls(asked),
            "At {best[bucket_mb]} MB, {slowed[exposed]:ms} of communication is exposed ({slowed[cell]}), mostly as "
            "additional compute time: {slowed[stretched]:ms} in the profiled step.",
            "Gradients that share a bucket are copied into it, so {large[bucket_mb]} MB buckets take "
            "{large[peak_memory] - small[peak_memory]:gib} more memory than {small[bucket_mb]} MB buckets.",
            *(duel.speed.sentence("bucketed with its best size", "overlapped", f"({duel.cell})") for duel in over[:1]),
            elsewhere(over),
        ),
    )


def same_calls(sizes: DataFrame) -> Typst:
    """The number of calls of each size."""
    calls = [
        say("{calls:whole} ({sizes:listing} MB)", calls=calls, sizes=list(same["bucket_mb"]))
        for calls, same in sizes.dropna(subset="messages").groupby("messages", sort=False)
    ]
    return say(
        "Since no gradient is split, {row[communicated]:size} of gradients take {calls:listing} calls.",
        calls=calls,
        row=sizes.iloc[0],
    )


def model(all_reduce: DataFrame, rows: DataFrame) -> Answer:
    """Sub-question (b): the best size by the model, with constants of measured all-reduces."""
    cells = [(cell, bucket_model(all_reduce, cell)) for cell in preferred_cells(device_bound(rows))]
    lines = [
        {
            **best_of(cell),
            "size": model.best_bucket_size / 1e6,
            "left": 1e3 * model.least_overhead,
            "bandwidth": model.bandwidth / 1e9,
            "call": 1e6 * model.call_seconds,
        }
        for cell, model in cells
        if model
    ]
    asked = lines[0] if lines else None
    facts = Facts(asked=asked)
    return Answer(
        asked="(b) Model",
        verdict=facts.say(
            "The cost model predicts {asked[size]:MB} to be best, with {asked[left]:ms} exposed ({asked[cell]})."
        )
        or say("The cost model's best buckets have √(s·w·o) bytes: gradients s, bandwidth w, call overhead o."),
        more="Then 2√(s·o/w) seconds of communication are exposed."
        if asked is None
        else facts.say("The fastest measured size, {asked[bucket_mb]} MB, exposes {asked[exposed]:ms}."),
        results=Captioned(
            grid(DataFrame(lines), MODEL),
            "Best bucket size and its exposed communication, according to the model and as measured.",
            legend={"stretched / ms": "Stretched: compute beyond the baseline's in the profiled step"},
        ),
        reason=facts.say(
            "The gradients take {asked[communicated]:size}; the fit to all-reduces between {asked[processes]} "
            "processes gives a bandwidth of {asked[bandwidth]:GB/s} and an overhead of {asked[call]:µs}.",
            "The model assumes that the backward pass takes as long as sending, {send:ms}, and ignores that "
            "communication stretches compute."
            if asked and asked["stretched"] > 0
            else "",
            send=asked and asked["communicated"] / asked["bandwidth"],
        ),
    )
