"""Measured all-reduces, one row per cell, and the line through their times, for figures, answers and checks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from pandas import DataFrame

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.record.rows import parameters
from scripts.views.cells import wide
from scripts.views.data import in_order, select

MB = 1e6
BACKENDS = {"nccl": "NCCL", "gloo": "Gloo"}
"""The backends' names for readers, the faster one first."""
WIDE_SPREAD = 0.05
"""Share of the median: times whose middle three fifths span more are marked."""
STATISTICS = ["median", "p20", "p80", "n"]


@dataclass(frozen=True)
class Line:
    """The time t = o + s/w of a collective on s bytes."""

    overhead: float
    """o, seconds: the time of a call with an arbitrarily small message; at least 0."""
    bandwidth: float
    """w, bytes/s of the message, not of the bytes on the bus."""
    residual: float | None
    """Root mean square of the points' relative deviations; None for two points, which a line always fits."""

    def seconds(self, size: float) -> float:
        """The line's time for the given number of bytes."""
        return self.overhead + size / self.bandwidth

    @property
    def half(self) -> float:
        """Bytes o·w, for which the overhead is half of the time."""
        return self.overhead * self.bandwidth


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> Line | None:
    """The least-squares line of relative deviations, so that small messages count as much as large ones.

    Args:
        sizes: bytes, at least two different ones.
        seconds: the time of each.

    Returns:
        None if time does not grow with size, or sizes do not differ: there is no bandwidth then.
    """
    if len(set(sizes)) < 2:
        return None
    size, time = numpy.array(sizes, dtype=float), numpy.array(seconds, dtype=float)
    # o/t + (s/t)/w = 1 at every point; with o = 0 separately, if the best line would start below 0.
    (overhead, slope), *_ = numpy.linalg.lstsq(numpy.stack([1 / time, size / time], axis=1), numpy.ones_like(time))
    if overhead < 0:
        overhead, slope = 0.0, (size / time).sum() / ((size / time) ** 2).sum()
    if slope <= 0:
        return None
    deviations = (overhead + slope * size) / time - 1
    residual = float(numpy.sqrt((deviations**2).mean())) if len(size) > 2 else None
    return Line(overhead=float(overhead), bandwidth=float(1 / slope), residual=residual)


def all_reduce_table(table: DataFrame) -> DataFrame:
    """One row per measured cell of `all_reduce`, NCCL first, by number of processes and size.

    Columns: the parameters; STATISTICS of its time, ms; the median of `bus_bandwidth`, GB/s; `size`, bytes.
    """
    cells = wide(table, parameters(AllReduce), ["bus_bandwidth"], "time", STATISTICS).reset_index()
    cells["size"] = MB * cells["megabytes"]
    return in_order(cells, ["backend", "processes", "megabytes"], backend=list(BACKENDS))


def lines(cells: DataFrame) -> dict[tuple[str, int], Line]:
    """The line through the medians of each backend and number of processes in `all_reduce_table`."""
    fitted = {}
    for backend, processes in cells[["backend", "processes"]].drop_duplicates().itertuples(index=False):
        rows = select(cells, backend=backend, processes=processes)
        if line := fit_line(list(rows["size"]), list(rows["median"] / 1e3)):
            fitted[str(backend), int(processes)] = line
    return fitted
