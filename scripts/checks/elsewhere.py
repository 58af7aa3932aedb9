"""Self-checks of quantities that are measured twice, by `end_to_end` and by an experiment with another instrument."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Cases, between_cells, check, name_row
from scripts.views.data import select
from scripts.views.kernels import kernels

STAGES = {"forward_busy": ["forward", "loss"], "backward_busy": ["backward"], "optimizer_busy": ["optimizer"]}
"""Stages by the `end_to_end` metric for their device time; inference has no loss."""
INSTRUMENTS = between_cells(0.02)
"""Relative difference of a phase's device time between the two instruments that measure it."""
PEAK = 0.01
"""Relative difference between peaks of one step in two processes, whose blocks may be divided differently."""


def quantities(tables: Mapping[str, DataFrame]) -> Iterator[tuple[str, str, Series, float]]:
    """Experiment, the `end_to_end` metric that it also measures, its value by cell, and their relative difference."""
    cell = parameters(KernelProfile)
    busy = select(tables[KernelProfile.name], metric="stage_busy")
    for metric, stages in STAGES.items():
        yield KernelProfile.name, metric, busy[busy["stage"].isin(stages)].groupby(cell)["mean"].sum(), INSTRUMENTS
    # Copies and fills count, too.
    calls = kernels(tables[KernelProfile.name]).groupby(cell)["calls"].sum()
    yield KernelProfile.name, "launches", calls, 0.0
    peaks = select(tables[MemoryProfile.name], metric="peak_allocated").set_index(parameters(MemoryProfile))["mean"]
    yield MemoryProfile.name, "peak_memory", peaks / MIB, PEAK


@check("{n} number{s}; largest difference {most:.1%}", "device time and memory are measured only on GPUs")
def both_instruments_agree(tables: Mapping[str, DataFrame]) -> Cases:
    """Launches, a phase's device time and peak memory are the same in profiled and timed steps.

    This holds for host-bound steps, too; times are within {INSTRUMENTS:.0%}, peaks within {PEAK:.0%}.
    """
    for name, metric, values, tolerance in quantities(tables):
        shared = [key for key in values.index.names if key in parameters(EndToEnd) and key not in ("warmup", "steps")]
        eager = {} if "compiled" in shared else {"compiled": False}
        rows = select(tables[EndToEnd.name], metric=metric, cold_start=False, **eager).sort_values("warmup")
        timed = rows.drop_duplicates(shared, keep="last").set_index(shared)["mean"].rename("timed")
        both = values.rename("profiled").reset_index().join(timed, on=shared, how="inner")
        for _, row in both.iterrows():
            error = abs(row["profiled"] / row["timed"] - 1)
            detail = f"{metric} {row['profiled']:.2f}, timed {row['timed']:.2f}"
            yield Case(name_row(name, row), error > tolerance, detail, error)
