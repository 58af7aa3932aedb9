"""The metrics that a measured cell has, and those that it lacks but others of its kind have."""

from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash, replayed
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import TrainingLadder
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.record.rows import parameters
from scripts.views.cells import CONTENDER

KIND = ("mode", "backend", "compiled_call", "rungs", "git_commit")
"""Parameters that determine which metrics a cell has, and the code that measured it: a later one may measure more."""
CONTENDERS_METRIC = ("moment", "part", "kind", "work")
"""Details that distinguish several rows of a contender with the same metric."""


def missing_metrics(experiment: str, table: DataFrame) -> dict[tuple[Any, ...], list[str]]:
    """By cell, each metric that it lacks and another measured cell of its kind has, for the cells that lack any.

    A metric that was lost for a recorded reason has a row nevertheless, and one row is enough for a lost contender.
    """
    rows = DataFrame(
        {
            "cell": cells_of(experiment, table),
            "kind": kinds_of(experiment, table),
            "contender": contenders_of(table),
            "metric": list(metrics_of(table)),
            "lost": list(table["status"] != "ok"),
        }
    )
    rows = rows[~rows["cell"].isin(cells_of(experiment, table[table["metric"] == WHOLE_CELL]))]
    of_each_kind = rows[["kind", "contender", "metric"]].drop_duplicates()
    expected = rows[["cell", "kind"]].drop_duplicates().merge(of_each_kind, on="kind")
    absent = without(expected, rows[["cell", "contender", "metric"]])
    absent = without(absent, rows.loc[rows["lost"] & (rows["contender"] != ""), ["cell", "contender"]])
    missing: dict[tuple[Any, ...], list[str]] = {}
    for cell, contender, metric in absent[["cell", "contender", "metric"]].itertuples(index=False):
        missing.setdefault(cell, []).append(f"{contender} {metric}".strip())
    return {cell: sorted(names) for cell, names in missing.items()}


def without(rows: DataFrame, others: DataFrame) -> DataFrame:
    """The rows that no row of the other table equals in its columns."""
    both = rows.merge(others.drop_duplicates(), how="left", indicator="side")
    return both[both["side"] == "left_only"].drop(columns="side")


def cells_of(experiment: str, table: DataFrame) -> list[tuple[Any, ...]]:
    """The parameters of each row of a table."""
    return list(table[parameters(EXPERIMENTS[experiment])].itertuples(index=False, name=None))


def kinds_of(experiment: str, table: DataFrame) -> list[tuple[Any, ...]]:
    """The values that decide which metrics each row's cell has."""
    decisive = table[[name for name in KIND if name in table]]
    if experiment == Flash.name:
        decisive = decisive.assign(replayed=replayed(table["batch_size"], table["heads"], table["sequence"]))
    if experiment == FullyShardedTraining.name:  # A size that no GPU holds unsharded has no baseline.
        decisive = decisive.assign(size=table["size"])
    if experiment == TrainingLadder.name:  # in other experiments, a part is a part of memory
        decisive = decisive.assign(part=table["part"])
    return list(decisive.itertuples(index=False, name=None)) if len(decisive.columns) else [()] * len(table)


def contenders_of(table: DataFrame) -> list[str]:
    """Which contender of a launch each row is of; empty where there are none."""
    return joined(table, CONTENDER)


def joined(table: DataFrame, columns: Sequence[str]) -> list[str]:
    """The texts of the existing columns, row by row."""
    texts = table[[name for name in columns if name in table]]
    return [" ".join(filter(None, row)) for row in texts.itertuples(index=False, name=None)] or [""] * len(table)


def metrics_of(table: DataFrame) -> Sequence[str]:
    """Each row's metric, with its stage if every stage has one, and which one of several of a contender."""
    if any(name in table for name in CONTENDER):
        return joined(table, ["metric", *CONTENDERS_METRIC])
    if "stage" not in table:
        return list(table["metric"])
    stages = table["stage"].where(table["metric"].str.startswith("stage"), "")
    return list((table["metric"] + " " + stages).str.strip())
