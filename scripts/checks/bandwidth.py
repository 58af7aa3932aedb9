"""Self-checks of the bandwidths that follow from an all-reduce's time."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.views.cells import in_words, side_by_side

MEDIAN_TOLERANCE = 0.05
"""Of even numbers of samples, the median of the quotients is not the quotient of the medians."""
ROUNDING = 1e-6


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of bandwidths."""
    yield bandwidths_follow_from_time(tables["all_reduce"])


def bandwidths_follow_from_time(table: DataFrame) -> Check:
    """Algorithm bandwidth is size over time; bus bandwidth is 2 (n - 1) / n of it, as nccl-tests define it."""
    columns = ["time", "algorithm_bandwidth", "bus_bandwidth"]
    cells = side_by_side(table, AllReduce, "median").reindex(columns=columns).dropna()
    complaints = []
    for _, row in cells.reset_index().iterrows():
        rate = row["megabytes"] / row["time"]  # MB / ms is GB / s
        bus = row["algorithm_bandwidth"] * 2 * (row["processes"] - 1) / row["processes"]
        if (
            abs(row["algorithm_bandwidth"] / rate - 1) > MEDIAN_TOLERANCE
            or abs(row["bus_bandwidth"] / bus - 1) > ROUNDING
        ):
            cell = in_words(AllReduce, tuple(row[parameters(AllReduce)]))
            found = f"{row['algorithm_bandwidth']:.2f} and {row['bus_bandwidth']:.2f} GB/s"
            complaints.append(f"{cell}: {found}, from the time {rate:.2f} GB/s")
    return conclude(
        "all-reduces' bandwidths follow from their sizes and times", complaints, len(cells), f"{len(cells)} cells"
    )
