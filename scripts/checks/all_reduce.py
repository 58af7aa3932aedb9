"""Self-checks of all-reduces."""

from pandas import DataFrame

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.cells import side_by_side
from scripts.views.data import select

BEYOND = 0.05
"""A median bandwidth may lie so far outside of what the 20th and 80th percentiles of the times give.

Of an even number of samples it is not the bandwidth of the median time: the two in the middle may be far apart.
"""
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
    columns = ["algorithm_bandwidth", "bus_bandwidth"]
    cells = side_by_side(all_reduce, AllReduce, "median").reindex(columns=columns)
    times = select(all_reduce, metric="time", status="ok").set_index(parameters(AllReduce))[["p20", "p80"]]
    for _, row in cells.join(times, how="inner").dropna().reset_index().iterrows():
        algorithm, bus = row[columns]
        least, most = row["megabytes"] / row["p80"], row["megabytes"] / row["p20"]  # MB / ms is GB / s
        expected_bus = algorithm * 2 * (row["processes"] - 1) / row["processes"]
        found = f"{algorithm:.2f} and {bus:.2f} GB/s, from the times {least:.2f} to {most:.2f} GB/s"
        outside = not least / (1 + BEYOND) <= algorithm <= most * (1 + BEYOND)
        yield Case(name_row(AllReduce.name, row), outside or abs(bus / expected_bus - 1) > ROUNDING, found)
