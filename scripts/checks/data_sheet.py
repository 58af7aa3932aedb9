"""The self-check of all experiments against the memory of the GPU's data sheet."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.checks import Case, Cases, check
from scripts.views.units import GB, GIB

RESERVED = 0.1
"""Largest share of a GPU's memory that its driver reserves, for example for error correction."""


@check("{n} jobs", "no data sheet is listed for this GPU or CPU")
def card_has_its_memory(tables: Mapping[str, DataFrame]) -> Cases:
    """The GPU has the memory of its data sheet, in GB or in GiB, except for the driver's share."""
    for name, table in tables.items():
        jobs = table[["gpu", "gpu_memory", "utc"]].drop_duplicates()
        for gpu, memory in zip(jobs["gpu"], jobs["gpu_memory"], strict=True):
            if sheet := gpu_of(gpu):
                low, high = (1 - RESERVED) * sheet.memory, sheet.memory / GB * GIB
                detail = f"{memory / GIB:.1f} GiB, not between {low / GIB:.1f} and {high / GIB:.1f}"
                yield Case(name, not low <= memory <= high, detail)
