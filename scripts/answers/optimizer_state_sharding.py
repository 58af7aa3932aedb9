"""Answers to `optimizer_state_sharding`: how evenly the wrapper shares the optimizer's state."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import VARIATION_MB
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say, tell
from scripts.rendering.markup import Table, fixed_point
from scripts.views.comparison import FOREIGN, OURS, OWN, ranks_of
from scripts.views.data import measured_machine, select
from scripts.views.earlier import MARK, earlier_cells
from scripts.views.optimizer_sharding import AFTER_UPDATE, UNSHARDED, memory


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer, and the size of buckets."""
    table = tables["optimizer_sharding"]
    rows = select(memory(table), moment=AFTER_UPDATE)
    rows = rows[rows["whole_state"] > 0]  # a lost one is none
    # The precision makes no difference: state is fp32.
    rows = rows.drop_duplicates(["size", "context", "processes", "contender"])
    copies = rows["processes"].where(rows["contender"] == UNSHARDED, 1)
    for end in ("least", "most"):
        rows[f"{end}_share"] = rows[f"{end}_state"] * copies / rows["whole_state"]
    caption = say(
        "AdamW's state on the rank with the least and the rank with the most of it, training {size}, on {machine}; "
        "counted from the state's tensors.",
        size=rows["label"].iloc[0] if len(rows) else None,
        machine=measured_machine(tables),
    )
    sharded = rows[rows["contender"] != UNSHARDED]
    earlier = earlier_cells(OptimizerSharding, table)
    evidence = Captioned(state_table(rows, earlier), caption)
    return {"evenness": evenness(sharded, evidence, earlier), "bucket": VARIATION_MB}


def evenness(sharded: DataFrame, evidence: Captioned, earlier: set[str]) -> Answer:
    """How much more than an equal share the fullest rank holds at most."""
    excess = (sharded["most_share"] * sharded["processes"] - 1).groupby(sharded["family"]).max()
    ours, theirs = excess.get(OURS), excess.get(FOREIGN)
    own = select(sharded, family=OURS)
    by_excess = own.assign(excess=own["most_share"] * own["processes"]).sort_values("excess", kind="stable")
    fullest = by_excess.iloc[-1] if len(own) else None
    return Answer(
        asked="Evenness",
        verdict=say(
            "The fullest rank holds at most {excess:percent} more than an equal share of the state.", excess=ours
        ),
        more=paragraph(
            NOTHING
            if fullest is None
            else say(
                "That is {ours} of it on {ranks}.",
                ours=f"{100 * fullest['most_share']:.2f} %",
                ranks=ranks_in_words(fullest, earlier),
            ),
            say("With PyTorch's `ZeroRedundancyOptimizer` it is at most {excess:percent}.", excess=theirs),
            say("With yours it is at most {excess:percent}.", excess=excess.get(OWN)),
        ),
        evidence=[evidence],
        reason=tell(
            ours is not None and theirs is not None and bool(ours > theirs),
            say(
                "Ours balances each bucket of {size} MB on its own, so that a bucket can travel while the next one is "
                "updated; PyTorch balances all parameters at once.",
                size=VARIATION_MB,
            ),
            NOTHING,
        ),
    )


def ranks_in_words(row: Series, earlier: set[str]) -> str:
    """How many ranks train, and whether earlier code measured it."""
    return f"{ranks_of(row)} ({MARK})" if row["cell"] in earlier else ranks_of(row)


def state_table(rows: DataFrame, earlier: set[str]) -> Table:
    """One row per contender; for each number of ranks the most MiB, and the least and the most share."""
    first = rows.drop_duplicates("processes")
    body = [
        [
            str(same["title"].iloc[0]),
            *(text for ranks in first["processes"] for text in state_cells(select(same, processes=ranks))),
        ]
        for _, same in rows.groupby("contender", sort=False)
    ]
    groups = [(ranks_in_words(row, earlier), 3) for _, row in first.iterrows()]
    return Table(["", *["most / MiB", "least / %", "most / %"] * len(first)], body, groups=[("", 1), *groups])


def state_cells(rows: DataFrame) -> list[str]:
    """A contender's columns for one number of ranks."""
    if not len(rows):
        return ["–"] * 3
    row = rows.iloc[0]
    return [f"{row['most_state']:.1f}", *(fixed_point(100 * row[f"{end}_share"], 2) for end in ("least", "most"))]
