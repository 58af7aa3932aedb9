"""Self-checks of the memory profile's timeline against the peaks that were counted."""

from collections.abc import Iterator, Mapping

import numpy
from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure.measurement import parse_samples
from scripts.checks import Check, conclude
from scripts.views.cells import cells, name_cell
from scripts.views.data import one, select, statistic

MEASURED = "peak_allocated"
ROUNDING = 1e-4
"""Of a sum of samples that are kept with five digits."""
NOT_MEASURED = "memory is followed on GPUs only"
DETAILS = list(MemoryProfile.details)


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the timeline."""
    table = tables["memory_profile"]
    yield stages_have_the_peak(table)
    yield timeline_has_the_peaks(table)
    yield categories_have_a_most(table)
    yield allocations_have_a_lifetime(table)


def each_cell(check: str, faults: list[str], examined: int) -> Check:
    """A check's outcome."""
    return conclude(check, faults, examined, f"{examined} cells" if examined else NOT_MEASURED)


def stages_have_the_peak(table: DataFrame) -> Check:
    """The step's peak is the highest stage's, and that stage is named."""
    complaints, examined = [], 0
    for row, rows in cells(table, MemoryProfile, MEASURED):
        examined += 1
        peaks = select(rows, metric="stage_peak").set_index("stage")["mean"]
        named = one(rows, metric="peak_stage")
        if peaks.empty or named is None:
            continue
        if peaks.max() != row["mean"] or peaks.get(named["value"]) != row["mean"]:
            complaints.append(f"{name_cell(row)}: {row['mean']:.0f} B in {named['value']}, stages {peaks.to_dict()}")
    return each_cell("a step's peak memory is that of the stage named for it", complaints, examined)


def timeline_has_the_peaks(table: DataFrame) -> Check:
    """Moment by moment the categories add up to no more than the stage's peak, and once to all of it."""
    complaints, examined = [], 0
    for row, rows in cells(table, MemoryProfile, MEASURED):
        examined += 1
        for stage, active in select(rows, metric="active").groupby("stage"):
            peak = statistic(rows, "mean", metric="stage_peak", stage=stage)
            if active["n"].nunique() > 1:
                complaints.append(f"{name_cell(row)}: {stage} has {sorted(active['n'].unique())} moments")
            elif peak is not None and abs(MIB * together(active).max() / peak - 1) > ROUNDING:
                complaints.append(f"{name_cell(row)}: {stage} {MIB * together(active).max():.0f} B, peak {peak:.0f} B")
    return each_cell("the memory timeline reaches each stage's peak, no more", complaints, examined)


def together(active: DataFrame) -> numpy.ndarray:
    """All categories' memory at each moment of a stage, MiB."""
    return numpy.sum([parse_samples(row["samples"]) or [row["mean"]] for _, row in active.iterrows()], axis=0)


def categories_have_a_most(table: DataFrame) -> Check:
    """At the peak, at a stage's end and in the timeline no category has more than its most, which it has once."""
    complaints, examined = [], 0
    for row, rows in cells(table, MemoryProfile, MEASURED):
        examined += 1
        most = by_category(select(rows, metric="most"))
        active = select(rows, metric="active")
        highest = Series([max(parse_samples(text) or [0.0]) for text in active["samples"]], index=active.index)
        seen = {
            "at the peak": by_category(select(rows, metric="at_peak")),
            "at a stage's end": by_category(select(rows, metric="stage_end")),
            "in the timeline": by_category(active.assign(mean=MIB * highest.clip(lower=active["mean"]))),
        }
        complaints += [
            f"{name_cell(row)}: {category} {where} {found:.0f} B, at most {most.get(category, 0):.0f} B"
            for where, categories in seen.items()
            for category, found in categories.items()
            if found > (1 + ROUNDING) * most.get(category, 0)
        ]
    return each_cell("no category of memory is ever above its most", complaints, examined)


def by_category(rows: DataFrame) -> Series:
    """The largest number of each category."""
    return rows.groupby("category")["mean"].max()


def allocations_have_a_lifetime(table: DataFrame) -> Check:
    """The largest allocations are listed by size, each with the time that it lasts unless it outlasts the step."""
    complaints, examined = [], 0
    for row, rows in cells(table, MemoryProfile, MEASURED):
        examined += 1
        listed = select(rows, metric="allocation")
        listed = listed.assign(order=listed["rank"].astype(int)).sort_values("order")
        freed = {(*values, count) for *values, count in listed[listed["freed"] != ""][[*DETAILS, "n"]].to_numpy()}
        lasting = {tuple(values) for values in select(rows, metric="lifetime")[[*DETAILS, "n"]].to_numpy()}
        if list(listed["order"]) != list(range(1, len(listed) + 1)) or not listed["mean"].is_monotonic_decreasing:
            complaints.append(f"{name_cell(row)}: not by size")
        elif freed != lasting:
            complaints.append(f"{name_cell(row)}: {len(freed ^ lasting)} without allocation or lifetime")
    return each_cell("the largest allocations are by size, and each that ends has a lifetime", complaints, examined)
