"""The statistics of comparisons against simulations and closed forms."""

import math

import numpy
import pytest

from cs336_systems.compare.speed import FASTER, SAME, SLOWER, UNDECIDED
from cs336_systems.compare.statistics import (
    Difference,
    RunToRun,
    benjamini_hochberg,
    decide,
    difference,
    time_of,
    widening,
)

MODEL = RunToRun(base=0.006, spread=0.0, clock=0.3, typical_spread=0.004)
CELLS = 400


def runs(generator, scale=1.0, shared=0.0):
    """Differences of two unchanged runs, `scale` times as far apart as their deviations say."""
    apart = generator.normal(shared, 0.008 * scale, CELLS)
    return [Difference(float(one), 0.008) for one in apart]


def test_p_values_and_intervals_are_those_of_a_normal_distribution():
    """Against numbers of tables."""
    two = Difference(1.959964 * 0.01, 0.01)
    assert two.p_different == pytest.approx(0.05, rel=1e-5)
    low, high = two.interval()
    assert low == pytest.approx(1.0, abs=1e-8)
    assert high == pytest.approx(math.exp(2 * 1.959964 * 0.01))
    assert Difference(0.0, 0.01).p_equivalent(math.expm1(0.01 * 2.326348)) == pytest.approx(0.01, rel=1e-5)


def test_benjamini_and_hochberg_reject_as_in_their_paper():
    """Their example of 1995, section 3.2: at 5 % the procedure rejects four of 15 hypotheses, Bonferroni's three."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590]
    p.append(1.0)
    assert benjamini_hochberg(p, 0.05) == [True] * 4 + [False] * 11
    assert benjamini_hochberg(list(reversed(p)), 0.05) == [False] * 11 + [True] * 4
    assert benjamini_hochberg([], 0.05) == []


def test_a_small_p_value_carries_larger_ones_below_it():
    """The largest rank that is small enough decides, not the first that is not."""
    assert benjamini_hochberg([0.03, 0.04, 0.045], 0.05) == [True] * 3


def test_unchanged_runs_get_wrong_verdicts_as_rarely_as_promised():
    generator = numpy.random.default_rng(1)
    wrong = [sum(verdict in (FASTER, SLOWER) for verdict in decide(runs(generator))) for _ in range(200)]
    assert sum(map(bool, wrong)) <= 8  # At most 1 % of 200 comparisons are expected.


def test_a_change_in_a_tenth_is_found_where_it_can_be():
    generator = numpy.random.default_rng(2)
    slower = others = 0
    for _ in range(50):
        unchanged = runs(generator)
        changed = [Difference(one.log_ratio + math.log(1.05), one.deviation) for one in unchanged[: CELLS // 10]]
        verdicts = decide(changed + unchanged[CELLS // 10 :])
        slower += sum(verdict == SLOWER for verdict in verdicts[: CELLS // 10])
        others += sum(verdict in (FASTER, SLOWER) for verdict in verdicts[CELLS // 10 :])
    assert changed[0].resolution() < 0.05
    assert slower >= 0.95 * 50 * CELLS // 10
    assert others <= 0.02 * slower


def test_same_is_proven_not_assumed():
    """A wide interval around 1 decides nothing; a small difference that is certain is none."""
    assert decide([Difference(0.0, 0.1)]) == [UNDECIDED]
    assert decide([Difference(0.02, 0.001)]) == [SAME]
    assert decide([Difference(-0.1, 0.01), Difference(0.1, 0.01)]) == [FASTER, SLOWER]


def test_correlated_samples_have_a_larger_error_than_independent_ones():
    """An autoregressive run of samples against many like it: the true spread of its median."""
    generator = numpy.random.default_rng(3)

    def run(length=256, memory=0.95):
        noise = generator.normal(0, 0.01 * math.sqrt(1 - memory**2), length)
        values = [generator.normal(0, 0.01)]
        for step in noise[1:]:
            values.append(memory * values[-1] + step)
        return 10 * numpy.exp(values)

    medians = [math.log(numpy.median(run())) for _ in range(300)]
    estimates = [time_of(10.0, run()).error for _ in range(100)]
    independent = 1.2533 * 0.01 / 16
    assert numpy.std(medians) > 3 * independent
    assert 0.5 * numpy.std(medians) < numpy.median(estimates) < 1.5 * numpy.std(medians)


def test_few_samples_close_together_are_not_taken_at_their_word():
    close = time_of(10.0, [10.0, 10.0, 10.0])
    assert close.spread == 0
    assert MODEL.shrunk(close) > 0.5 * MODEL.typical_spread


def test_a_lowered_clock_widens_the_interval():
    steady, throttled = time_of(10.0, [10.0] * 20), time_of(10.0, [10.0] * 20, clock_drop=0.1)
    assert MODEL.deviation(throttled) > 3 * MODEL.deviation(steady)


def test_rates_are_compared_as_times():
    """Twice the bandwidth is half the time."""
    slow, fast = time_of(100.0, is_ms=False), time_of(200.0, is_ms=False)
    assert difference(slow, fast, MODEL).ratio == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_intervals_are_widened_as_far_as_unchanged_runs_differ(scale):
    generator = numpy.random.default_rng(4)
    # A shift that all share and a tenth that has changed are no variation.
    differences = runs(generator, scale, shared=0.1)
    differences[: CELLS // 10] = [Difference(one.log_ratio + 0.2, one.deviation) for one in differences[: CELLS // 10]]
    assert widening(differences) == pytest.approx(scale, rel=0.3)
    assert widening(differences[:5]) == 1.0
