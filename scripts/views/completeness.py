"""Which metrics a measured cell has, and which it lacks that others of its kind have."""

from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash, replayed
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import TrainingLadder
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.record.rows import parameters

KIND = ("mode", "backend", "tried", "compiled_call", "rungs", "source_digest")
"""Parameters that determine which metrics a cell has, and the code that measured it: a later one may measure more."""
CONTENDER = ("wrapper", "bucket_mb", "contender", "rung")
"""Details that tell contenders of one launch apart, each of which has metrics of its own."""
CONTENDERS_METRIC = ("moment", "part", "kind", "work")
"""Details that tell apart what a contender has several of under one name."""


def missing_metrics(experiment: str, table: DataFrame) -> dict[tuple[Any, ...], list[str]]:
    """By cell, each metric that it lacks and another measured cell of its kind has, for the cells that lack any.

    A metric that was lost for a reason has a row all the same, and of a contender that was lost one row is enough.
    """
    lost = set(cells_of(experiment, table[table["metric"] == WHOLE_CELL]))
    found: dict[tuple[Any, ...], set[tuple[str, str]]] = {}
    kinds: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    lost_contenders: set[tuple[tuple[Any, ...], str]] = set()
    for cell, kind, contender, metric, status in zip(
        cells_of(experiment, table),
        kinds_of(experiment, table),
        contenders_of(table),
        metrics_of(table),
        table["status"],
        strict=True,
    ):
        if cell not in lost:
            found.setdefault(cell, set()).add((contender, metric))
            kinds[cell] = kind
            if contender and status != "ok":
                lost_contenders.add((cell, contender))
    expected: dict[tuple[Any, ...], set[tuple[str, str]]] = {}
    for cell, metrics in found.items():
        expected.setdefault(kinds[cell], set()).update(metrics)
    absent = {
        cell: [(who, metric) for who, metric in expected[kinds[cell]] - metrics if (cell, who) not in lost_contenders]
        for cell, metrics in found.items()
    }
    named = {cell: sorted(f"{who} {metric}".strip() for who, metric in missing) for cell, missing in absent.items()}
    return {cell: missing for cell, missing in named.items() if missing}


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
    if experiment == TrainingLadder.name:  # elsewhere a part is one of memory
        decisive = decisive.assign(part=table["part"])
    return list(decisive.itertuples(index=False, name=None)) if len(decisive.columns) else [()] * len(table)


def contenders_of(table: DataFrame) -> list[str]:
    """Which contender of a launch each row is of; empty where there are none."""
    return joined(table, CONTENDER)


def joined(table: DataFrame, columns: Sequence[str]) -> list[str]:
    """The texts of those of the columns that there are, row by row."""
    found = table[[name for name in columns if name in table]]
    return [" ".join(filter(None, row)) for row in found.itertuples(index=False, name=None)] or [""] * len(table)


def metrics_of(table: DataFrame) -> Sequence[str]:
    """Each row's metric, and the stage that it is of where every stage has one; of a contender's, which of several."""
    if any(name in table for name in CONTENDER):
        return joined(table, ["metric", *CONTENDERS_METRIC])
    if "stage" not in table:
        return list(table["metric"])
    stages = table["stage"].where(table["metric"].str.startswith("stage"), "")
    return list((table["metric"] + " " + stages).str.strip())
