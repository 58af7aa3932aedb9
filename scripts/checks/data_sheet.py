"""Self-checks of all experiments against the GPU's data sheet: its memory and rates."""

import math
from collections.abc import Callable, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.checks import Case, Evidence, check, rows_of
from scripts.views.units import GB, GIB

RESERVED = 0.1
"""Share of a card's memory that its driver keeps for itself at most, as for error correction."""
NOT_LISTED = "no data sheet is listed for this GPU, or for a CPU"
PLANNED = "planned_memory"
"""A closed form, which may be more than there is."""


@check("{n} jobs", NOT_LISTED)
def card_has_its_memory(tables: Mapping[str, DataFrame]) -> Evidence:
    """The card has the memory of its data sheet, in GB or in GiB, but for the driver's share."""
    for name, table in tables.items():
        jobs = table[["gpu", "gpu_memory", "utc"]].drop_duplicates()
        for gpu, found in zip(jobs["gpu"], jobs["gpu_memory"], strict=True):
            if sheet := gpu_of(gpu):
                low, high = (1 - RESERVED) * sheet.memory, sheet.memory / GB * GIB
                complaint = f"{found / GIB:.1f} GiB, not between {low / GIB:.1f} and {high / GIB:.1f}"
                yield Case(name, not low <= found <= high, complaint)


@check("{n} amounts; {most:.0%} of the card at most", "memory is counted on GPUs only")
def memory_fits_the_card(tables: Mapping[str, DataFrame]) -> Evidence:
    """No amount of memory in use is larger than the card."""
    for where, row in rows_of(tables, unit="MiB"):
        if row["metric"] == PLANNED or not row["gpu_count"]:
            continue
        share = row["mean"] * MIB / row["gpu_memory"] if row["gpu_memory"] else float("inf")
        found = f"{row['metric']} {row['mean']:.0f} MiB of {row['gpu_memory'] / MIB:.0f}"
        yield Case(where, share > 1, found, float(share))


def link(sheet: Gpu, row: Series) -> float:
    """The most bus bandwidth of an all-reduce between GPUs, bytes/s: the link, or what a switch that adds makes of it.

    Bus bandwidth counts the ring's 2 (n - 1) / n bytes. A switch that adds and copies (NVLink SHARP) spares bytes: then
    a GPU sends (n + 1) / n, each of its n shards to be added and one sum.
    """
    if sheet.link is None or row["backend"] != "nccl":
        return math.inf
    return sheet.link * max(1, 2 * (row["processes"] - 1) / (row["processes"] + 1))


CEILINGS: Mapping[str, tuple[float, Callable[[Gpu, Series], float]]] = {
    "copy_speed": (1e9, lambda sheet, row: sheet.bandwidth),
    "matmul_rate": (1e12, lambda sheet, row: max(sheet.bf16, sheet.fp32)),
    "bus_bandwidth": (1e9, link),
}
"""By metric, its unit per second, and the rate that it cannot exceed."""


@check("{n} rates; the closest reaches {most:.0%}", NOT_LISTED)
def rates_are_below_the_peak(tables: Mapping[str, DataFrame]) -> Evidence:
    """No copy is faster than the data sheet's memory, no matmul than its rate, and no all-reduce than its link."""
    for metric, (unit, ceiling) in CEILINGS.items():
        for where, row in rows_of(tables, metric=metric):
            if sheet := gpu_of(row["gpu"]):
                share = float(unit * row["median"] / ceiling(sheet, row))
                yield Case(where, share > 1, f"{metric} {row['median']:.0f} {row['unit']}, {share:.0%} of it", share)
