"""Self-checks of cells that resemble each other more than two measurements do."""

from collections.abc import Iterator, Mapping

import numpy
from numpy.typing import NDArray
from pandas import DataFrame

from cs336_systems.experiments.metrics import SECONDS, metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words, side_by_side

APART = 0.006
"""Two cells that differ in what follows are suspect where all their times agree within this share."""
SETS_APART = ("compiled", "compiled_call", "implementation", "attention", "context", "sequence", "megabytes")


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of resemblance."""
    yield no_two_times_identical(tables)
    yield no_two_cells_alike(tables)


def no_two_times_identical(tables: Mapping[str, DataFrame]) -> Check:
    """Two cells with the same time to the last digit were not both measured, whatever was timed.

    A GPU's clock ticks: of the same work timed a few times, two means may be equal, but hardly the spreads as well.
    """
    complaints, examined = [], 0
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        # Left out are rows that details tell apart, and what the device's clock says of one step: a few kernels do take
        # equally long by it.
        by_host = table["unit"].isin(list(SECONDS)) & ~table["metric"].str.endswith("_busy")
        means, spreads = (side_by_side(table[by_host], kind, column) for column in ("mean", "std"))
        for metric in means:
            times = DataFrame({"mean": means[metric], "std": spreads.get(metric)}).dropna(subset="mean")
            times = times[times["mean"] > 0]
            examined += len(times)
            repeated = times.loc[times.duplicated(), "mean"]
            complaints += [f"{in_words(kind, cell)}: {metric} {value}" for cell, value in repeated.items()]
    return conclude("no two times of a kind are identical to the last digit", complaints, examined, f"{examined} times")


def no_two_cells_alike(tables: Mapping[str, DataFrame]) -> Check:
    """Two cells that differ in implementation, compilation or length have at least one time that differs."""
    complaints, examined, closest = [], 0, float("inf")
    for experiment, table in tables.items():
        kind = EXPERIMENTS[experiment]
        times = side_by_side(table[table["unit"] == "ms"], kind, "median")
        times = times.drop(columns=[name for name, of in metrics_of(kind).items() if of.unaffected and name in times])
        keys = parameters(kind)
        for differs in set(SETS_APART) & set(keys):
            for _, group in times.groupby([name for name in keys if name != differs]):
                cells = group.to_numpy()
                ones, others = numpy.triu_indices(len(cells), 1)
                differences = largest_differences(cells[ones], cells[others])
                known = differences[~numpy.isnan(differences)]
                examined += len(known)
                closest = min(closest, known.min(initial=closest))
                complaints += [
                    f"{in_words(kind, group.index[int(one)])}: another {differs}, all times within {difference:.2%}"
                    for one, difference in zip(ones, differences, strict=True)
                    if difference <= APART
                ]
    check = f"cells that differ in implementation, compilation or length differ by more than {APART:.1%} in some time"
    summary = f"{examined} pairs; the closest differ by {closest:.1%}" if examined else "there are no two such cells"
    return conclude(check, complaints, examined, summary)


def largest_differences(firsts: NDArray[numpy.float64], seconds: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """The largest relative difference of each two cells' times; those that one of them lacks are NaN, and left out."""
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return numpy.fmax.reduce(numpy.abs(firsts / seconds - 1), axis=1, initial=numpy.nan)
