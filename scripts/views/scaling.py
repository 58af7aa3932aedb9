"""Weak scaling: the step without communication over the step with it, on the same ranks in the same launch."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series, isna

from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.views.comparison import OWN, Kind, cells_of, contenders, device_bound, fastest, names_in, setting_name
from scripts.views.data_parallel import OURS, PYTORCH

PYTORCHS = "PyTorch's DDP"
COLUMNS = ["panel", "title", "contender", "processes", "gpu", "efficiency", "median"]


def scaling(tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per contender and number of ranks, in device-bound cells with a steady step without communication.

    Columns: `panel`, model and setting; `title`; `contender`; `processes`; `gpu`, empty on a CPU; `efficiency`, 1 if
    communication costs nothing; `step`, ms. For data-parallel wrappers with several settings, only the fastest.
    """
    wrappers, sharded = (contenders(kind, tables[kind.name]) for kind in (DataParallelTraining, FullyShardedTraining))
    rows: list[dict[str, object]] = []
    for cell in cells_of(device_bound(wrappers)):
        names = {**{title: [name] for name, title in OURS.items()}, PYTORCHS: PYTORCH}
        names |= {name: [name] for name in names_in(cell, OWN)}
        rows += rows_of(DataParallelTraining, {title: fastest(cell, each) for title, each in names.items()})
    for cell in cells_of(device_bound(sharded)):
        rows += rows_of(FullyShardedTraining, {row["title"]: row for _, row in cell.iterrows()})
    return DataFrame(rows, columns=COLUMNS).rename(columns={"median": "step"})


def rows_of(kind: Kind, named: Mapping[str, Series | None]) -> Iterator[dict[str, object]]:
    """The rows of a cell's contenders; none for its baseline, and where that is not steady."""
    for title, row in named.items():
        if row is not None and not isna(row["exposed"]):
            panel = f"{row['label']}, {setting_name(kind, row)}"
            yield {**row, "panel": panel, "title": title, "efficiency": row["baseline"] / row["median"]}
