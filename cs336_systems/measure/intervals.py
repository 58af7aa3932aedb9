"""Time intervals, such as those in which a device runs kernels. Intervals of different streams may overlap. No torch
here.
"""

from collections.abc import Iterable

Interval = tuple[float, float]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals (start, end) into disjoint ones, in order, that cover the same times.

    >>> merge([(4, 5), (0, 2), (1, 3), (3, 3.5)])
    [(0, 3.5), (4, 5)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: Iterable[Interval]) -> float:
    """The total length that intervals cover; overlaps count once."""
    return sum(end - start for start, end in merge(intervals))
