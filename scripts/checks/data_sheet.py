"""Self-checks of all experiments against the GPU's data sheet: its memory and rates."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.checks import Case, Evidence, NotApplicable, check, name_row
from scripts.views.data import measured_gpu
from scripts.views.units import GB, GIB

RESERVED = 0.1
"""Share of a card's memory that its driver keeps for itself at most, as for error correction."""
PLANNED = "planned_memory"
"""A closed form, which may be more than there is."""


def peak(tables: Mapping[str, DataFrame]) -> Gpu:
    """The data sheet of the GPU that measured.

    Raises:
        NotApplicable: none is listed.
    """
    if found := gpu_of(measured_gpu(tables)):
        return found
    raise NotApplicable(f"no data sheet is listed for {measured_gpu(tables) or 'a CPU'}")


def cells(tables: Mapping[str, DataFrame], column: str, value: str) -> Iterator[tuple[str, Series]]:
    """Each measured row on a GPU with a value in a column, and its cell in words."""
    for name, table in tables.items():
        for _, row in table[(table[column] == value) & (table["status"] == "ok") & (table["gpu_count"] > 0)].iterrows():
            yield name_row(EXPERIMENTS[name], row), row


def memory_of_a_card(sheet: Gpu, where: str, found: int) -> Case:
    """The case that a card must have the memory of its data sheet; `found` in bytes."""
    low, high = (1 - RESERVED) * sheet.memory, sheet.memory / GB * GIB
    said = f"{found / GIB:.1f} GiB, not between {low / GIB:.1f} and {high / GIB:.1f}"
    return Case(where, not low <= found <= high, said)


@check("{n} jobs")
def card_has_its_memory(tables: Mapping[str, DataFrame]) -> Evidence:
    """The card has the memory of its data sheet, in GB or in GiB, but for the driver's share."""
    sheet = peak(tables)
    for name, table in tables.items():
        jobs = table.loc[table["gpu"] != "", ["gpu_memory", "source_digest", "utc"]].drop_duplicates()
        for found in jobs["gpu_memory"]:
            yield memory_of_a_card(sheet, name, found)


@check("{n} amounts; {most:.0%} of the card at most", "memory is counted on GPUs only")
def memory_fits_the_card(tables: Mapping[str, DataFrame]) -> Evidence:
    """No amount of memory in use is larger than the card."""
    for where, row in cells(tables, "unit", "MiB"):
        if row["metric"] == PLANNED:
            continue
        share = row["mean"] * MIB / row["gpu_memory"] if row["gpu_memory"] else float("inf")
        found = f"{row['metric']} {row['mean']:.0f} MiB of {row['gpu_memory'] / MIB:.0f}"
        yield Case(where, share > 1, found, float(share))


@check("{n} rates; the closest reaches {most:.0%}")
def rates_are_below_the_peak(tables: Mapping[str, DataFrame]) -> Evidence:
    """No copy is faster than the data sheet's memory, and no matmul than its rate."""
    sheet = peak(tables)
    ceilings = {"copy_speed": (sheet.bandwidth, 1e9), "matmul_rate": (max(sheet.bf16, sheet.fp32), 1e12)}
    for metric, (ceiling, unit) in ceilings.items():
        for where, row in cells(tables, "metric", metric):
            share = row["median"] * unit / ceiling
            yield Case(where, share > 1, f"{row['metric']} {row['median']:.0f} {row['unit']}", float(share))
