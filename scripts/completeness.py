"""Which metrics a measured cell has, and which it lacks that others of its kind have."""

from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import Flash, replayed
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.measure.record import parameters

KIND = ("mode", "backend", "tried", "compiled_call")
"""Parameters on which it depends what is measured."""


def missing_metrics(experiment: str, table: DataFrame) -> dict[tuple[Any, ...], list[str]]:
    """By cell, each metric that it lacks and another measured cell of its kind has, for the cells that lack any.

    A metric that was lost for a reason has a row all the same.
    """
    lost = set(cells_of(experiment, table[table["metric"] == WHOLE_CELL]))
    found: dict[tuple[Any, ...], set[str]] = {}
    kinds: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for cell, kind, metric in zip(
        cells_of(experiment, table), kinds_of(experiment, table), metrics_of(table), strict=True
    ):
        if cell not in lost:
            found.setdefault(cell, set()).add(metric)
            kinds[cell] = kind
    expected: dict[tuple[Any, ...], set[str]] = {}
    for cell, metrics in found.items():
        expected.setdefault(kinds[cell], set()).update(metrics)
    return {cell: sorted(absent) for cell, metrics in found.items() if (absent := expected[kinds[cell]] - metrics)}


def cells_of(experiment: str, table: DataFrame) -> list[tuple[Any, ...]]:
    """The parameters of each row of a table."""
    return list(table[parameters(EXPERIMENTS[experiment])].itertuples(index=False, name=None))


def kinds_of(experiment: str, table: DataFrame) -> list[tuple[Any, ...]]:
    """What decides which metrics each row's cell has."""
    decisive = table[[name for name in KIND if name in table]]
    if experiment == Flash.name:
        decisive = decisive.assign(replayed=replayed(table["batch_size"], table["heads"], table["sequence"]))
    if experiment == FullyShardedTraining.name:  # A size that no GPU holds unsharded has no floor to be compared with.
        decisive = decisive.assign(size=table["size"])
    return list(decisive.itertuples(index=False, name=None)) if len(decisive.columns) else [()] * len(table)


def metrics_of(table: DataFrame) -> Series:
    """Each row's metric, and the stage that it is of where every stage has one."""
    if "stage" not in table:
        return table["metric"]
    stages = table["stage"].where(table["metric"].str.startswith("stage"), "")
    return (table["metric"] + " " + stages).str.strip()
