"""The line through the times of a collective, against points whose overhead and bandwidth are known."""

import random

import numpy
import pytest

from scripts.views.communication import fit_line

SIZES = [1e6, 1e7, 1e8, 1e9]


def times(overhead, bandwidth, noise=0.0):
    draw = random.Random(1)
    return [(overhead + size / bandwidth) * (1 + draw.uniform(-noise, noise)) for size in SIZES]


@pytest.mark.parametrize(("overhead", "bandwidth"), [(20e-6, 3.3e11), (3e-3, 1.1e9), (0.0, 5e10)])
def test_a_known_line_is_found(overhead, bandwidth):
    line = fit_line(SIZES, times(overhead, bandwidth))
    assert line.overhead == pytest.approx(overhead, rel=1e-6, abs=1e-12)
    assert line.bandwidth == pytest.approx(bandwidth, rel=1e-9)
    assert line.residual == pytest.approx(0, abs=1e-9)
    assert line.seconds(3e7) == pytest.approx(overhead + 3e7 / bandwidth)
    assert line.half == pytest.approx(overhead * bandwidth, rel=1e-6, abs=1)


def test_small_messages_count_as_much_as_large_ones():
    seconds = times(30e-6, 3.3e11)
    seconds[2] *= 0.98
    seconds[3] *= 1.02
    line = fit_line(SIZES, seconds)
    assert line.overhead == pytest.approx(30e-6, rel=0.03)
    assert line.bandwidth == pytest.approx(3.3e11, rel=0.03)
    _, unweighted = numpy.polyfit(SIZES, seconds, 1)
    assert abs(unweighted / 30e-6 - 1) > 0.1


def test_it_is_the_best_of_all_lines():
    seconds = times(30e-6, 3.3e11, noise=0.2)
    line = fit_line(SIZES, seconds)

    def deviation(overhead, bandwidth):
        deviations = [(overhead + size / bandwidth) / time - 1 for size, time in zip(SIZES, seconds, strict=True)]
        return sum(each**2 for each in deviations)

    best = deviation(line.overhead, line.bandwidth)
    assert line.residual == pytest.approx((best / 4) ** 0.5)
    for factor in (0.99, 1.01):
        assert deviation(line.overhead * factor, line.bandwidth) > best
        assert deviation(line.overhead, line.bandwidth * factor) > best


def test_no_overhead_is_less_than_none():
    line = fit_line([1e6, 1e7, 1e8], [1e-3, 2e-2, 2e-1])  # the first one is faster than in proportion
    assert line.overhead == 0
    # The best slope alone: Σ(s/t) / Σ(s/t)².
    assert 1 / line.bandwidth == pytest.approx((1e9 + 5e8 + 5e8) / (1e18 + 2 * 2.5e17))
    assert line.residual > 0


def test_two_points_leave_no_residual():
    line = fit_line(SIZES[:2], times(1e-3, 1e9)[:2])
    assert line.overhead == pytest.approx(1e-3)
    assert line.residual is None


def test_without_growth_there_is_no_line():
    assert fit_line([1e6, 1e7], [2e-3, 1e-3]) is None
    assert fit_line([1e6], [1e-3]) is None
    assert fit_line([], []) is None
