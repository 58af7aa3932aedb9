"""Answers to `optimizer_state_sharding`: how evenly the wrapper shares the optimizer's state."""

from cs336_systems.experiments.contender import COMMON_MB
from scripts.rendering.answer import Answer, Answers, Tables, say
from scripts.rendering.markup import Typst
from scripts.views.comparison import FOREIGN, OURS, OWN, ranks_of
from scripts.views.comparison_tables import missing
from scripts.views.data import last, select
from scripts.views.optimizer_sharding import AFTER_UPDATE, UNSHARDED, memory


def answers(tables: Tables) -> Answers:
    """The section's answer, and the size of buckets."""
    table = tables["optimizer_sharding"]
    rows = select(memory(table), moment=AFTER_UPDATE)
    rows = rows[rows["whole_state"] > 0]  # a lost one does not count
    # The precision makes no difference: state is fp32.
    rows = rows.drop_duplicates(["size", "context", "processes", "contender"])
    sharded = rows[rows["contender"] != UNSHARDED]
    share = sharded["most_state"] / sharded["whole_state"]
    sharded = sharded.assign(most_share=100 * share, excess=(share * sharded["processes"] - 1).round(9))
    excess = sharded.groupby("family")["excess"].max()
    ours, theirs = excess.get(OURS), excess.get(FOREIGN)
    fullest = last(select(sharded, family=OURS).sort_values("excess", kind="stable"))
    evenness = Answer(
        asked="Evenness",
        missing=missing(table),
        verdict=say("The fullest rank holds {share} of the state.", share=share_with(ours)),
        more=say(
            "It holds {share} of the state of {label} on {ranks}.",
            "With PyTorch's `ZeroRedundancyOptimizer` it holds {theirs}.",
            "With your optimizer it holds {own}.",
            share="" if fullest is None else f"{fullest['most_share']:.2f} %",
            ranks="" if fullest is None else ranks_of(fullest),
            label="" if fullest is None else fullest["label"],
            theirs=share_with(theirs),
            own=share_with(excess.get(OWN)),
        ),
        reason=say(
            "Our optimizer assigns parameters bucket by bucket, so that some buckets can be sent while later ones are "
            "updated; PyTorch assigns all parameters at once."
            if ours and theirs and ours > theirs
            else "",
        ),
    )
    return {"evenness": evenness, "bucket": COMMON_MB}


def share_with(excess: float | None) -> Typst:
    """The fullest rank's share of the state in words, given its relative excess over an equal share."""
    return (
        Typst("an equal share")
        if excess == 0
        else say("at most {excess:percent} more than an equal share", excess=excess)
    )
