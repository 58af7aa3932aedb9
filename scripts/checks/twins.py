"""Self-checks of cells that are more alike than two measurements can be."""

import math
from collections.abc import Mapping

import numpy
from numpy.typing import NDArray
from pandas import DataFrame, Series

from cs336_systems.experiments.metrics import SECONDS, metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Cases, check
from scripts.views.cells import in_words, side_by_side

APART = 0.006
"""Two cells that differ in one of the following are suspect if all their times agree within this share."""
SETS_APART = ("compiled", "compiled_call", "implementation", "attention", "context", "sequence", "megabytes")


@check("{n} kind{s} of times")
def no_two_times_identical(tables: Mapping[str, DataFrame]) -> Cases:
    """No two times of a kind are identical to the last digit.

    If two cells have the same time, one of them was not measured. A GPU's clock is discrete: if the same computation is
    timed a few times, two means may be equal, but hardly their spreads as well.
    """
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        # Rows distinguished by details are omitted, and device times of one step: a few kernels do take equally long.
        by_host = table["unit"].isin(list(SECONDS)) & ~table["metric"].str.endswith("_busy")
        means, spreads = (side_by_side(table[by_host], kind, column) for column in ("mean", "std"))
        for metric in means:
            times = DataFrame({"mean": means[metric], "std": spreads.get(metric)}).dropna(subset="mean")
            times = times[times["mean"] > 0]
            twice = [in_words(kind, cell) for cell in times.index[times.duplicated()]]
            if len(times):
                yield Case(metric, bool(twice), ", ".join(twice))


@check("{n} pair{s}; the closest differ by {least:.1%}", "no two cells to compare")
def no_two_cells_alike(tables: Mapping[str, DataFrame]) -> Cases:
    """Cells with the same kernels but another implementation, compilation or length differ by more than {APART:.1%} in
    at least one time.
    """
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        times = side_by_side(table[table["unit"] == "ms"], kind, "median")
        times = times.drop(columns=[name for name, of in metrics_of(kind).items() if of.unaffected and name in times])
        keys = parameters(kind)
        kernels = kernels_of(table, keys)
        for differs in set(SETS_APART) & set(keys):
            for _, group in times.groupby([name for name in keys if name != differs]):
                cells, ran = group.to_numpy(), kernels.reindex(group.index, fill_value="").to_numpy(dtype=str)
                ones, others = numpy.triu_indices(len(cells), 1)
                # If two libraries are equally fast, the kernels that ran distinguish them.
                same = ran[ones] == ran[others]
                ones, others = ones[same], others[same]
                differences = largest_differences(cells[ones], cells[others])
                for one, difference in zip(ones.tolist(), differences.tolist(), strict=True):
                    if not math.isnan(difference):
                        detail = f"another {differs}, all times within {difference:.2%}"
                        yield Case(in_words(kind, group.index[one]), difference <= APART, detail, difference)


def kernels_of(table: DataFrame, keys: list[str]) -> "Series[str]":
    """The kernels of each cell, by its parameters, if its rows name them."""
    if "kernels" not in table:
        return Series(dtype=str)
    named = table[table["kernels"] != ""]
    return named.drop_duplicates(keys).set_index(keys)["kernels"]


def largest_differences(firsts: NDArray[numpy.float64], seconds: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """The largest relative difference between the times of each pair of cells; times missing from one of them are NaN,
    and omitted.
    """
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return numpy.fmax.reduce(numpy.abs(firsts / seconds - 1), axis=1, initial=numpy.nan)
