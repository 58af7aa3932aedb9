"""Self-checks of all-reduces."""

from pandas import DataFrame

from cs336_systems.experiments.all_reduce import AllReduce
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.cells import side_by_side
from scripts.views.data import select

MEDIAN_TOLERANCE = 0.05
"""Of even numbers of samples, the median of the quotients is not the quotient of the medians."""
ROUNDING = 1e-6


@check("{n} cells")
def sums_are_right(all_reduce: DataFrame) -> Evidence:
    """Every number of an all-reduce's sum was right on every rank, before the timing and after it."""
    for _, row in select(all_reduce, metric="wrong_numbers").iterrows():
        yield Case(name_row(AllReduce.name, row), row["mean"] > 0, f"up to {row['p80']:.0f} wrong")


@check("{n} cells")
def bandwidths_follow_from_time(all_reduce: DataFrame) -> Evidence:
    """All-reduces' bandwidths follow from their sizes and times.

    Algorithm bandwidth is size over time; bus bandwidth is 2 (n - 1) / n of it, as nccl-tests define it.
    """
    columns = ["time", "algorithm_bandwidth", "bus_bandwidth"]
    cells = side_by_side(all_reduce, AllReduce, "median").reindex(columns=columns).dropna()
    for _, row in cells.reset_index().iterrows():
        rate, algorithm, bus = row["megabytes"] / row["time"], *row[columns[1:]]  # MB / ms is GB / s
        expected_bus = algorithm * 2 * (row["processes"] - 1) / row["processes"]
        found = f"{algorithm:.2f} and {bus:.2f} GB/s, from the time {rate:.2f} GB/s"
        wrong = abs(algorithm / rate - 1) > MEDIAN_TOLERANCE or abs(bus / expected_bus - 1) > ROUNDING
        yield Case(name_row(AllReduce.name, row), wrong, found)
