"""Self-checks of the device's own time against the host's clock."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.data import select

WHOLES = {
    "forward_busy": "forward",
    "backward_busy": "backward",
    "optimizer_busy": "optimizer",
    "device_busy": "step",
    "stage_busy": "stage",
}
"""By the device's time in something, how long it takes by the host's clock, or by events without the profiler."""
BUSIEST = 1.05
"""Share of the median for which the device may seem to work: its time is that of another step."""


@check("{n} phases and steps; {most:.1%} at most, allowed {BUSIEST:.0%}", "busy time is measured on GPUs only")
def device_is_not_busier_than_the_step_is_long(tables: Mapping[str, DataFrame]) -> Evidence:
    """In no step, nor any part of one, does the device of a single process work for longer than it takes.

    On several GPUs, a profiled device also waits for the others; a CPU's operators are slower under the profiler.
    """
    for name, table in tables.items():
        keys = [*parameters(EXPERIMENTS[name]), *EXPERIMENTS[name].details]
        alone = table[(table["gpu"] != "") & (table.get("processes", 1) == 1)]
        for busy, whole in WHOLES.items():
            times = select(alone, metric=whole)[[*keys, "median"]]
            for _, row in select(alone, metric=busy).merge(times, on=keys, suffixes=("", "_whole")).iterrows():
                share = row["median"] / row["median_whole"]
                yield Case(name_row(name, row), share > BUSIEST, f"{whole} {share:.0%} busy", share)
