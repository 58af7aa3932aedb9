"""The overhead of bucket sizes by the closed form, with measured constants, for the figure and the answers."""

import math

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.bucketing import BucketedReduction
from cs336_systems.experiments.data_parallel import BASELINE
from scripts.views.communication import MB, Line, all_reduce_table, lines
from scripts.views.comparison import backend_of
from scripts.views.data import select


def fitted_line(all_reduce: DataFrame, row: Series) -> Line | None:
    """The line through the all-reduces of a contender's backend and number of processes, if one was fitted."""
    return lines(all_reduce_table(all_reduce)).get((backend_of(row), row["processes"]))


def bucket_model(all_reduce: DataFrame, cell: DataFrame) -> BucketedReduction | None:
    """The model of a cell's buckets: o and w from all-reduces, s and the backward pass (if known) from the cell.

    None if one of the others was not measured, or if the fitted overhead of a call is 0: then there is no reason for
    few buckets.
    """
    bucketed, baseline = select(cell, contender="bucketed"), select(cell, contender=BASELINE)
    if not len(bucketed):
        return None
    line = fitted_line(all_reduce, bucketed.iloc[0])
    size, backward = MB * bucketed["communicated"].iloc[0], baseline["backward"].sum(min_count=1) / 1e3
    if line is None or not line.overhead or pandas.isna(size):
        return None
    return BucketedReduction(
        size=size,
        bandwidth=line.bandwidth,
        call_seconds=line.overhead,
        backward_seconds=None if pandas.isna(backward) else float(backward),
    )


def predicted(model: BucketedReduction, row: Series) -> float:
    """Milliseconds left after the backward pass by the model, for the number of calls of a bucketed contender.

    Small buckets make fewer calls than expected, since each parameter is sent in one piece.
    """
    calls = row["messages"]
    return 1e3 * model.overhead(math.ceil(model.size / (MB * float(row["bucket_mb"]))) if pandas.isna(calls) else calls)
