"""The self-check of the memory profile's list of allocations."""

from pandas import DataFrame

from cs336_systems.experiments.memory_profile import MemoryProfile
from scripts.checks import Case, Cases, check, name_row
from scripts.views.cells import cells
from scripts.views.data import select

MEASURED = "peak_allocated"
"""The metric that every measured cell has."""
DETAILS = list(MemoryProfile.details)


@check("{n} cell{s}", "memory is recorded only on GPUs")
def allocations_have_a_lifetime(memory_profile: DataFrame) -> Cases:
    """The largest allocations are ordered by size, and each freed one has a lifetime."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        listed = select(rows, metric="allocation").astype({"rank": int}).sort_values("rank")
        freed, lasting = (
            set(map(tuple, chosen[[*DETAILS, "n"]].astype({"rank": int}).to_numpy()))
            for chosen in (listed[listed["freed"] != ""], select(rows, metric="lifetime"))
        )
        by_size = list(listed["rank"]) == list(range(1, len(listed) + 1)) and listed["mean"].is_monotonic_decreasing
        detail = f"by size: {by_size}; {len(freed ^ lasting)} without allocation or lifetime"
        yield Case(name_row(MemoryProfile.name, row), not by_size or freed != lasting, detail)
