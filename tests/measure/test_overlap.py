"""Intervals and their overlap, against a count of the points of a grid."""

import itertools
import random

import pytest

from cs336_systems.measure.intervals import covered, merge
from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, by_kind, overlap, shares

LENGTH = 120


def some_intervals(numbers, most=12):
    starts = [numbers.randrange(LENGTH - 10) for _ in range(numbers.randrange(most))]
    return [(start, start + numbers.randrange(10)) for start in starts]


def points(intervals):
    return {point for start, end in intervals for point in range(start, end)}


@pytest.mark.parametrize("seed", range(20))
def test_merged_intervals_cover_the_same_points(seed):
    intervals = some_intervals(random.Random(seed), most=30)
    merged = merge(intervals)
    assert points(merged) == points(intervals)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(merged))
    assert covered(intervals) == len(points(intervals))


@pytest.mark.parametrize("seed", range(20))
def test_overlap_and_shares_count_the_same_points(seed):
    numbers = random.Random(seed)
    first, second = some_intervals(numbers), some_intervals(numbers)
    assert overlap(first, second) == len(points(first) & points(second))
    start, parts, length = 10, 9, 7  # both ends cut intervals off
    counted = [
        len(points(first) & set(range(start + part * length, start + (part + 1) * length))) / length
        for part in range(parts)
    ]
    assert shares(first, start, start + parts * length, parts) == pytest.approx(counted)


def test_what_does_not_meet_overlaps_by_nothing():
    """Not by less, as rounded sums would have it."""
    numbers = random.Random(0)
    for _ in range(100):
        ends = sorted(numbers.uniform(0, 50) for _ in range(40))
        pieces = list(zip(ends[::2], ends[1::2], strict=True))
        assert 0 <= overlap(pieces[::2], pieces[1::2]) < 1e-9


def test_shares_of_parts_that_are_not_whole():
    parts = shares([(0.0, 1.0)], 0.1, 0.7, 7)
    assert parts == pytest.approx([1.0] * 7)
    assert max(parts) <= 1


def test_names_tell_what_a_kernel_is_for():
    by_kinds = by_kind(
        [
            DeviceEvent(name=name, start=start, end=end)
            for name, start, end in [
                ("sm90_xmma_gemm_f32f32", 0, 4),
                ("Memcpy DtoD (Device -> Device)", 4, 5),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3, 9),
                ("Memcpy PtoP (Device -> Device)", 10, 12),
                ("multi_tensor_apply_kernel<TernaryOpScalarFunctor<float, 2, 2, 0>, LerpFunctor<float>>", 11, 13),
                ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int)", 13, 14),
                ("multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 15, 18),
            ]
        ]
    )
    assert by_kinds == {COMPUTE: [(0, 5)], COMMUNICATION: [(3, 9), (10, 14)], OPTIMIZER: [(15, 18)]}
