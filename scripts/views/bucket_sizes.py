"""The overhead of bucket sizes by the closed form, with measured constants, for the figure and the answers."""

import math

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.bucketing import BucketedReduction
from scripts.views.communication import MB, all_reduce_table, lines
from scripts.views.comparison import backend_of
from scripts.views.data import select


def bucket_model(all_reduce: DataFrame, cell: DataFrame) -> BucketedReduction | None:
    """The model of a cell's buckets: o and w from the line through its backend's all-reduces, s from the cell.

    None if one of them was not measured, or if the fitted overhead of a call is 0: then there is no reason for few
    buckets.
    """
    for _, row in select(cell, contender="bucketed").dropna(subset="communicated").head(1).iterrows():
        line = lines(all_reduce_table(all_reduce)).get((backend_of(row), row["processes"]))
        if line is not None and line.overhead:
            size = MB * row["communicated"]
            return BucketedReduction(size=size, bandwidth=line.bandwidth, call_seconds=line.overhead)
    return None


def predicted(model: BucketedReduction, row: Series) -> float:
    """Milliseconds left after the backward pass by the model, for the number of calls of a bucketed contender.

    Small buckets make fewer calls than expected, since each parameter is sent in one piece.
    """
    calls = row["messages"]
    return 1e3 * model.overhead(math.ceil(model.size / (MB * float(row["bucket_mb"]))) if pandas.isna(calls) else calls)
