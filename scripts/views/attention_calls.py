"""Attention implementations in figures, answers and checks: names, timed passes, and which were measured."""

from pandas import DataFrame, MultiIndex, Series

from cs336_systems.experiments.flash import Flash, contender_of
from cs336_systems.record.rows import parameters
from scripts.views.data import select

PASSES = ["forward", "backward", "forward_backward"]
OURS = "triton"
ONE_HEAD = {"batch_size": 1, "heads": 1, "causal": True, "compiled_call": False}
"""The handout's grid."""
HOPPER_KERNEL = "attention_forward_kernel"
"""The forward kernel for Hopper; Triton's is `forward_kernel`."""


def titles(table: DataFrame) -> dict[str, str]:
    """The title of each implementation that has rows: the registry's in its order, then a user's own.

    A mark shows fp32 that is only as accurate as TF32.
    """
    present = set(table["implementation"])
    known = [contender.name for contender in Flash.contenders if contender.name in present]
    marks = {
        row["implementation"]: f" (fp32 in {row['value']})" for _, row in select(table, metric="rounding").iterrows()
    }
    return {name: contender_of(name).title + marks.get(name, "") for name in [*known, *sorted(present - set(known))]}


def our_implementation(table: DataFrame) -> str:
    """The kernels, or this project's PyTorch version where they cannot run."""
    return OURS if OURS in set(select(table, status="ok")["implementation"]) else "tiled"


def own_rows(table: DataFrame) -> "Series[bool]":
    """Whether each row is of a user's own implementation, NAME=package.module:name."""
    return table["implementation"].str.contains("=").astype(bool)


def without_own(table: DataFrame) -> DataFrame:
    """The rows that are not of a user's own implementation."""
    return table[~own_rows(table)]


def with_kernels_for_hopper(table: DataFrame) -> DataFrame:
    """Rows of `flash` with `for_hopper`, whether the row's cell launched our kernels for Hopper, by their names.

    Also with `recorded`, whether its kernels were recorded.
    """
    columns = parameters(Flash)
    recorded = table[table["metric"] == "launches"]
    launched = recorded[recorded["kernels"].str.contains(rf"\b{HOPPER_KERNEL}\b")]
    cells = MultiIndex.from_frame(table[columns])
    marks = {"for_hopper": launched, "recorded": recorded}
    return table.assign(**{name: cells.isin(MultiIndex.from_frame(rows[columns])) for name, rows in marks.items()})


def kind_of_call(table: DataFrame) -> Series:
    """The group of cells of `flash` a row is compared with: the leaderboard's, those with one head, or those with
    many.
    """
    many = (table["batch_size"] * table["heads"] > 1).map({True: "many heads", False: "one head"})
    return many.where(~table["compiled_call"], "the leaderboard")


def availability(table: DataFrame) -> str:
    """Why the experiment `flash` was not measured here; empty if it was."""
    if len(select(table, metric="forward_backward")):
        return ""
    why = table[table["status"] != "ok"]["message"]
    return str(why.iloc[0]) if len(why) else "its job was not run"
