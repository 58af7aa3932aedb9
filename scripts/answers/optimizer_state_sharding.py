"""Answers to `optimizer_state_sharding`: how evenly the wrapper shares the optimizer's state."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import VARIATION_MB
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.rendering.answer import Answer, Captioned, Found, Tables, say
from scripts.rendering.grid import grid
from scripts.rendering.markup import Table
from scripts.views.comparison import FOREIGN, OURS, OWN, ranks_of
from scripts.views.data import flat, last, select
from scripts.views.earlier import of_earlier_code
from scripts.views.optimizer_sharding import AFTER_UPDATE, UNSHARDED, memory


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
        evidence=Captioned(state_table(rows), caption),
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


def state_table(rows: DataFrame) -> Table:
    """One row per contender; for each number of ranks the most MiB, and the least and the most share."""
    names = ["most_state", "least_share", "most_share"]
    wide = rows.assign(ranks=[ranks_of(row) for _, row in rows.iterrows()])
    wide = flat(wide.pivot(index="contender", columns="ranks", values=names))
    wide = wide.reindex(list(dict.fromkeys(rows["contender"])))
    wide["title"] = rows.drop_duplicates("contender").set_index("contender")["title"]
    columns = {
        ranks: {
            "most / MiB": f"{{most_state {ranks}:.1f}}",
            "least / %": f"{{least_share {ranks}:.2f}}",
            "most / %": f"{{most_share {ranks}:.2f}}",
        }
        for ranks in dict.fromkeys(ranks_of(row) for _, row in rows.iterrows())
    }
    return grid(wide.reset_index(), {"": {"": "{title}"}, **columns})
