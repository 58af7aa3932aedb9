"""Answers to `naive_ddp_benchmarking`: the training step when each gradient is all-reduced after the backward pass."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import BASELINE
from scripts.rendering.answer import Answer, Answers, Facts, Tables
from scripts.rendering.markup import measured
from scripts.views.comparison import duels
from scripts.views.comparison_tables import setting
from scripts.views.data_parallel import every_wrapper, why_missing, wrappers

IDLE = 1.0
"""Idle time that is mentioned, at least, in ms."""


def answers(tables: Tables) -> Answers:
    """The section's answers, and what all wrappers have in common."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {"share": share(table, rows), "s": setting(rows)}


def share(table: DataFrame, rows: DataFrame) -> Answer:
    """Time per step, its share spent on communicating gradients, and its parts in the requested cell."""
    steps = [duel.first for duel in duels(rows, ["naive"], [BASELINE])]
    if not steps:
        return Answer("Step time and share", missing=why_missing(table, rows))
    naive = steps[0]
    facts = Facts(
        naive=naive,
        idle=naive["idle"] if naive["idle"] > IDLE else None,
        microseconds=1e3 * naive["idle"] if naive["compiled"] and naive["idle"] > IDLE else None,
        uncovered=naive["uncovered"] if naive["hidden"] == 0 else None,
    )
    takes = "A naive step takes {naive[median]:ms}; "
    return Answer(
        asked="Step time and share",
        verdict=facts.say(
            "Communication costs {naive[exposed] / naive[median]:percent} of a naive step, {naive[exposed]:ms} of "
            "{naive[median]:ms} ({naive[cell]})."
        )
        or facts.say(takes + "communication takes {naive[synchronization_share]:percent} of it ({naive[cell]}).")
        or facts.say(takes + "its share of communication is unknown ({naive[cell]})."),
        more=facts.say(
            "" if measured(naive["exposed"]) else "To determine this share, phases were timed separately.",
            "In the profiled step, {uncovered:ms} of communication overlaps no compute "
            "({uncovered / naive[timeline_length]:percent} of the step). The device idles {idle:ms} longer "
            "than without communication.",
        ),
        results=every_wrapper(table, rows),
        reason=facts.say(
            "The naive wrapper all-reduces {naive[messages]:whole} gradients one by one, {naive[communicated]:size} in "
            "total.",
            "The additional idle time is {microseconds / naive[messages]:µs} per call on average ({naive[cell]}); its "
            "cause is not known.",
        ),
    )
