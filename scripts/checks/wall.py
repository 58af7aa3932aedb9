"""Self-checks of the time that a cell took in total."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.metrics import SECONDS, timed
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check
from scripts.views.cells import in_words
from scripts.views.data import measured_gpu, select

SUM_ON_CPU = ("flash", "forward_backward")
"""Not timed there: by the host's clock both passes in one call are the sum of the two."""
CLOCKS = 0.01
"""Relative difference between two clocks of one machine."""


@check("{n} cells; {most:.0%} of it at most")
def timed_is_within_wall(tables: Mapping[str, DataFrame]) -> Evidence:
    """What was timed in a cell took no longer than the whole cell."""
    on_gpu = bool(measured_gpu(tables))
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        keys = parameters(kind)
        metrics = [name for name in timed(kind) if on_gpu or (experiment, name) != SUM_ON_CPU]
        rows = table[table["metric"].isin(metrics) & (table["status"] == "ok")]
        seconds = rows["n"] * rows["mean"] * rows["unit"].map(SECONDS)
        used = seconds.groupby([rows[name] for name in keys]).sum().rename("used")
        walls = select(table, metric=WALL).set_index(keys)["mean"].rename("wall")
        for cell, row in used.to_frame().join(walls, how="inner").iterrows():
            found = f"{row['used']:.2f} s timed in {row['wall']:.2f} s"
            yield Case(in_words(kind, cell), row["used"] > (1 + CLOCKS) * row["wall"], found, row["used"] / row["wall"])
