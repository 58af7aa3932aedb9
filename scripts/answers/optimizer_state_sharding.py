"""Answers to `optimizer_state_sharding`: what the wrapper does, and how evenly it shares the state out."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, isna

from scripts.rendering.markup import Table
from scripts.views.comparison import FOREIGN, OURS, OWN
from scripts.views.comparison_tables import missing
from scripts.views.data import select
from scripts.views.optimizer_sharding import AFTER_UPDATE, UNSHARDED, memory


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["optimizer_sharding"]
    rows = select(memory(table), moment=AFTER_UPDATE)
    rows = rows[rows["whole_state"] > 0]  # a lost one is none
    # The precision makes no difference: state is fp32.
    rows = rows.drop_duplicates(["size", "context", "processes", "contender"])
    if not len(rows):
        return {"state": None, "missing": missing(table)}
    sharded = rows[rows["contender"] != UNSHARDED]
    return {"state": state_table(rows), "size": rows["label"].iloc[0], "uneven": uneven(sharded)}


def state_table(rows: DataFrame) -> Table:
    """The least and the most that a rank has of the optimizer state."""
    gpu = bool(rows["gpu"].iloc[0])
    body = []
    for _, row in rows.iterrows():
        copies = row["processes"] if row["contender"] == UNSHARDED else 1
        whole = row["whole_state"] / copies
        ends = [row["least_state"], row["optimizer_state"]]
        body.append(
            [
                f"{row['processes']} {'GPUs' if gpu else 'processes'}",
                row["title"],
                *(f"{end:.1f}" for end in ends),
                *(f"{100 * end / whole:.2f}" for end in ends),
            ]
        )
    return Table(
        ["", "", "least", "most", "least", "most"],
        body,
        text_columns=2,
        groups=[("", 2), ("MiB on a rank", 2), ("% of the whole", 2)],
    )


def uneven(rows: DataFrame) -> dict[str, float | None]:
    """How much more than an equal share the fullest rank has at most, by family."""
    excess = rows["optimizer_state"] * rows["processes"] / rows["whole_state"] - 1
    most = {family: excess[rows["family"] == family].max() for family in (OURS, FOREIGN, OWN)}
    return {family: None if isna(value) else float(value) for family, value in most.items()}
