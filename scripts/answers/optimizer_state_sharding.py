"""Answers to `optimizer_state_sharding`: how evenly the wrapper shares the optimizer's state."""

from cs336_systems.experiments.contender import VARIATION_MB
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.rendering.answer import Answer, Captioned, Found, Tables, say
from scripts.rendering.grid import crossed
from scripts.views.comparison import FOREIGN, OURS, OWN, ranks_of
from scripts.views.comparison_tables import missing
from scripts.views.data import last, select
from scripts.views.earlier import of_earlier_code
from scripts.views.optimizer_sharding import AFTER_UPDATE, UNSHARDED, memory

STATE = {"most / MiB": "{most_state:.1f}", "least / %": "{least_share:.2f}", "most / %": "{most_share:.2f}"}
"""By number of ranks."""


def answers(tables: Tables) -> Found:
    """The section's answer, and the size of buckets."""
    table = tables["optimizer_sharding"]
    rows = select(memory(table), moment=AFTER_UPDATE)
    rows = rows[rows["whole_state"] > 0]  # a lost one is none
    # The precision makes no difference: state is fp32.
    rows = rows.drop_duplicates(["size", "context", "processes", "contender"])
    copies = rows["processes"].where(rows["contender"] == UNSHARDED, 1)
    for end in ("least", "most"):
        rows[f"{end}_share"] = 100 * rows[f"{end}_state"] * copies / rows["whole_state"]
    sharded = rows[rows["contender"] != UNSHARDED]
    sharded = sharded.assign(excess=sharded["most_share"] * sharded["processes"] / 100 - 1)
    excess = sharded.groupby("family")["excess"].max()
    ours, theirs = excess.get(OURS), excess.get(FOREIGN)
    fullest = last(select(sharded, family=OURS).sort_values("excess", kind="stable"))
    caption = (
        "AdamW's state on the rank with the least and the rank with the most of it, counted from the state's tensors."
    )
    evenness = Answer(
        asked="Evenness",
        missing=missing(table),
        verdict=say(
            "The fullest rank holds at most {excess:percent} more than an equal share of the state.", excess=ours
        ),
        more=say(
            "That is {share} of it on {ranks}.",
            "With PyTorch's `ZeroRedundancyOptimizer` it is at most {excess:percent}.",
            say("With yours it is at most {excess:percent}.", excess=excess.get(OWN)),
            share="" if fullest is None else f"{fullest['most_share']:.2f} %",
            ranks="" if fullest is None else ranks_of(fullest),
            excess=theirs,
        ),
        details=Captioned(
            crossed(rows.assign(ranks=[ranks_of(row) for _, row in rows.iterrows()]), "title", "ranks", STATE), caption
        ),
        reason=say(
            say(
                "Ours balances each bucket of {size} MB on its own, so that a bucket can travel while the next one is "
                "updated; PyTorch balances all parameters at once.",
                size=VARIATION_MB,
            )
            if ours and theirs and ours > theirs
            else "",
            of_earlier_code(OptimizerSharding, table),
        ),
    )
    return {"evenness": evenness, "bucket": VARIATION_MB}
