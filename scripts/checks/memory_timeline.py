"""Self-checks of the memory profile's timeline against the peaks that were counted."""

import numpy
from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.record.measurement import parse_samples
from scripts.checks import Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.data import one, select, statistic

MEASURED = "peak_allocated"
ROUNDING = 1e-4
"""Of a sum of samples that are kept with five digits."""
NOT_MEASURED = "memory is followed on GPUs only"
DETAILS = list(MemoryProfile.details)


@check("{n} cells", NOT_MEASURED)
def stages_have_the_peak(memory_profile: DataFrame) -> Evidence:
    """A step's peak memory is that of the stage named for it."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        yield 1
        peaks = select(rows, metric="stage_peak").set_index("stage")["mean"]
        named = one(rows, metric="peak_stage")
        if peaks.empty or named is None:
            continue
        if peaks.max() != row["mean"] or peaks.get(named["value"]) != row["mean"]:
            yield f"{name_cell(row)}: {row['mean']:.0f} B in {named['value']}, stages {peaks.to_dict()}"


@check("{n} cells", NOT_MEASURED)
def timeline_has_the_peaks(memory_profile: DataFrame) -> Evidence:
    """The memory timeline reaches each stage's peak, no more."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        yield 1
        for stage, active in select(rows, metric="active").groupby("stage"):
            peak = statistic(rows, "mean", metric="stage_peak", stage=stage)
            if active["n"].nunique() > 1:
                yield f"{name_cell(row)}: {stage} has {sorted(active['n'].unique())} moments"
            elif peak is not None and abs(MIB * together(active).max() / peak - 1) > ROUNDING:
                yield f"{name_cell(row)}: {stage} {MIB * together(active).max():.0f} B, peak {peak:.0f} B"


def together(active: DataFrame) -> numpy.ndarray:
    """All categories' memory at each moment of a stage, MiB."""
    return numpy.sum([parse_samples(row["samples"]) or [row["mean"]] for _, row in active.iterrows()], axis=0)


@check("{n} cells", NOT_MEASURED)
def categories_have_a_most(memory_profile: DataFrame) -> Evidence:
    """No category of memory is ever above its most."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        yield 1
        most = by_category(select(rows, metric="most"))
        active = select(rows, metric="active")
        highest = Series([max(parse_samples(text) or [0.0]) for text in active["samples"]], index=active.index)
        seen = {
            "at the peak": by_category(select(rows, metric="at_peak")),
            "at a stage's end": by_category(select(rows, metric="stage_end")),
            "in the timeline": by_category(active.assign(mean=MIB * highest.clip(lower=active["mean"]))),
        }
        yield from (
            f"{name_cell(row)}: {category} {where} {found:.0f} B, at most {most.get(category, 0):.0f} B"
            for where, categories in seen.items()
            for category, found in categories.items()
            if found > (1 + ROUNDING) * most.get(category, 0)
        )


def by_category(rows: DataFrame) -> Series:
    """The largest number of each category."""
    return rows.groupby("category")["mean"].max()


@check("{n} cells", NOT_MEASURED)
def allocations_have_a_lifetime(memory_profile: DataFrame) -> Evidence:
    """The largest allocations are by size, and each that ends has a lifetime."""
    for row, rows in cells(memory_profile, MemoryProfile, MEASURED):
        yield 1
        listed = select(rows, metric="allocation")
        listed = listed.assign(order=listed["rank"].astype(int)).sort_values("order")
        freed = {(*values, count) for *values, count in listed[listed["freed"] != ""][[*DETAILS, "n"]].to_numpy()}
        lasting = {tuple(values) for values in select(rows, metric="lifetime")[[*DETAILS, "n"]].to_numpy()}
        if list(listed["order"]) != list(range(1, len(listed) + 1)) or not listed["mean"].is_monotonic_decreasing:
            yield f"{name_cell(row)}: not by size"
        elif freed != lasting:
            yield f"{name_cell(row)}: {len(freed ^ lasting)} without allocation or lifetime"
