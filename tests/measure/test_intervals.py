"""Intervals, against a count of the covered points of a grid."""

import itertools
import random

import pytest

from cs336_systems.measure.intervals import covered, merge


@pytest.mark.parametrize("seed", range(20))
def test_merged_intervals_cover_the_same_points(seed):
    numbers = random.Random(seed)
    starts = [numbers.randrange(100) for _ in range(numbers.randrange(1, 30))]
    intervals = [(start, start + numbers.randrange(10)) for start in starts]
    merged = merge(intervals)
    points = {point for start, end in intervals for point in range(start, end)}
    assert {point for start, end in merged for point in range(start, end)} == points
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(merged))
    assert covered(intervals) == len(points)


def test_no_interval_covers_nothing():
    assert merge([]) == []
    assert covered([]) == 0
