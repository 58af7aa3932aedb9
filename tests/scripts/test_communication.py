"""The line through the times of a collective, where it is not an ordinary one."""

import pytest

from scripts.views.communication import fit_line


def test_a_known_line_is_found_from_two_points_without_residual():
    line = fit_line([1e6, 1e7], [1e-3 + 1e6 / 1e9, 1e-3 + 1e7 / 1e9])
    assert (line.overhead, line.bandwidth) == (pytest.approx(1e-3), pytest.approx(1e9))
    assert (line.seconds(3e7), line.half) == (pytest.approx(31e-3), pytest.approx(1e6))
    assert line.residual is None


def test_no_overhead_is_less_than_none():
    line = fit_line([1e6, 1e7, 1e8], [1e-3, 2e-2, 2e-1])  # the first one is faster than in proportion
    assert line.overhead == 0
    # The best slope alone: Σ(s/t) / Σ(s/t)².
    assert 1 / line.bandwidth == pytest.approx((1e9 + 5e8 + 5e8) / (1e18 + 2 * 2.5e17))
    assert line.residual > 0


def test_without_growth_there_is_no_line():
    assert fit_line([1e6, 1e7], [2e-3, 1e-3]) is None
    assert fit_line([1e6], [1e-3]) is None
    assert fit_line([], []) is None
