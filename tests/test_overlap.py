"""What runs at the same time, against a count of the points of a grid."""

import random

import pytest

from cs336_systems.measure.overlap import COMMUNICATION, COMPUTE, OPTIMIZER, DeviceEvent, by_kind, overlap, shares

LENGTH = 120


def some_intervals(numbers):
    starts = [numbers.randrange(LENGTH - 10) for _ in range(numbers.randrange(12))]
    return [(start, start + numbers.randrange(10)) for start in starts]


def points(intervals):
    return {point for start, end in intervals for point in range(start, end)}


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


def test_shares_of_parts_that_are_not_whole():
    found = shares([(0.0, 1.0)], 0.1, 0.7, 7)
    assert found == pytest.approx([1.0] * 7)
    assert max(found) <= 1


OWN, NCCLS, COPIES = 7, 20, 24


def event(name, stream, start, end):
    return DeviceEvent(name=name, stream=stream, start=start, end=end)


def test_what_runs_beside_the_step_communicates():
    found = by_kind(
        [
            event("sm90_xmma_gemm_f32f32", OWN, 0, 4),
            event("Memcpy DtoD (Device -> Device)", OWN, 4, 5),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", NCCLS, 3, 9),
            event("Memcpy PtoP (Device -> Device)", COPIES, 10, 12),
            event("vectorized_elementwise_kernel<CUDAFunctor_add>", COPIES, 11, 13),
            event("ncclDevKernel_AllReduce_Max_u8", OWN, 14, 15),
            event("multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", OWN, 15, 18),
        ]
    )
    assert found == {COMPUTE: [(0, 5)], COMMUNICATION: [(3, 9), (10, 13), (14, 15)], OPTIMIZER: [(15, 18)]}


def test_many_short_copies_beside_it_do_not_make_another_stream_the_steps():
    kernels = [event("gemm", OWN, start, start + 9) for start in range(0, 100, 10)]
    copies = [event("Memcpy PtoP", COPIES, start, start + 1) for start in range(50)]
    assert by_kind(kernels + copies)[COMPUTE] == [(kernel.start, kernel.end) for kernel in kernels]


def test_nothing_but_communication():
    assert by_kind([event("ncclDevKernel", NCCLS, 1, 2)])[COMMUNICATION] == [(1, 2)]
