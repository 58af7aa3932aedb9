"""Self-checks of the time that a cell took in total."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.metrics import SECONDS, timed
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WALL
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words
from scripts.views.data import measured_gpu, select

SUM_ON_CPU = ("flash", "forward_backward")
"""Not timed there: by the host's clock both passes in one call are the sum of the two."""
CLOCKS = 0.01
"""Relative difference between two clocks of one machine."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of total times."""
    yield timed_is_within_wall(tables)
    yield jobs_take_time_to_start(tables)


def timed_is_within_wall(tables: Mapping[str, DataFrame]) -> Check:
    """What was timed in a cell, n times its mean, takes no longer than the cell."""
    on_gpu = bool(measured_gpu(tables))
    complaints, most, examined = [], 0.0, 0
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        keys = parameters(kind)
        metrics = [name for name in timed(kind) if on_gpu or (experiment, name) != SUM_ON_CPU]
        rows = table[table["metric"].isin(metrics) & (table["status"] == "ok")]
        seconds = rows["n"] * rows["mean"] * rows["unit"].map(SECONDS)
        used = seconds.groupby([rows[name] for name in keys]).sum()
        wall = select(table, metric=WALL).set_index(keys)["mean"].reindex(used.index)
        examined += int(wall.notna().sum())
        most = max([most, *(used / wall).dropna()])
        complaints += [
            f"{in_words(kind, cell)}: {used[cell]:.2f} s timed in {wall[cell]:.2f} s"
            for cell in used[used > (1 + CLOCKS) * wall].index
        ]
    check = "what was timed in a cell took no longer than the whole cell"
    return conclude(check, complaints, examined, f"{examined} cells; {most:.0%} of it at most")


def jobs_take_time_to_start(tables: Mapping[str, DataFrame]) -> Check:
    """The time from a job's start to its first cell is a time."""
    complaints, examined = [], 0
    for name, table in tables.items():
        seconds = table["startup_seconds"].drop_duplicates()
        examined += len(seconds)
        complaints += [f"{name}: {value} s" for value in seconds[~(seconds > 0)]]
    return conclude("every job took some time to start", complaints, examined, f"{examined} jobs")
