"""The rule of every verdict on speed against simulations whose truth is known, and the rule of what is host-bound."""

import numpy
import pytest
from numpy import nan

from cs336_systems.compare.speed import CHANCE, FASTER, SAME, SLOWER, UNDECIDED, host_bound, outcome, speed

RUNS = 2000
LAWS = {
    "normal": lambda generator, shape: 100 + generator.normal(0, 1, shape),
    "long tail": lambda generator, shape: 100 + numpy.abs(generator.standard_t(2, shape)),
    "scattered": lambda generator, shape: 100 * numpy.exp(generator.normal(0, 0.3, shape)),
}


def verdicts(law, shape, *, longer=0.0, drift=0.0, scale=1.0):
    """Verdicts on simulated runs of two programs; the first takes `longer`, and rounds `drift` for both."""
    generator = numpy.random.default_rng(0)
    for _ in range(RUNS):
        rounds = generator.normal(0, drift, (shape[0], 1))
        first, other = (LAWS[law](generator, shape) for _ in range(2))
        yield speed(100 + scale * (first - 100) + rounds + longer, other + rounds)


def share(called, *wanted):
    return sum(verdict in wanted for verdict in called) / RUNS


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("shape", "most"), [((1, 3), CHANCE), ((1, 5), CHANCE), ((2, 4), 0.03), ((3, 3), 0.03), ((1, 10), 0.015)]
)
def test_equal_programs_are_called_faster_as_rarely_as_promised(law, shape, most):
    called = list(verdicts(law, shape, drift=5.0))
    for verdict in (FASTER, SLOWER):
        assert share(called, verdict) < most + 3 * (most / RUNS) ** 0.5


def test_equal_programs_are_on_par_in_many_steps():
    assert share(list(verdicts("normal", (1, 100))), SAME) == 1


def test_one_of_two_equal_programs_may_scatter_more():
    assert share(list(verdicts("normal", (1, 10), scale=5.0)), FASTER, SLOWER) < 2 * CHANCE


@pytest.mark.parametrize("drift", [0.0, 50.0])
def test_a_difference_beyond_the_spread_is_found_whatever_both_drift(drift):
    assert share(list(verdicts("normal", (2, 4), longer=4.0, drift=drift)), SLOWER) > 0.98
    assert share(list(verdicts("normal", (2, 4), longer=-4.0, drift=drift)), FASTER) > 0.98


def test_a_difference_within_the_spread_is_a_tie_however_certain_it_is():
    assert share(list(verdicts("normal", (1, 100), longer=0.5)), SAME) > 0.99
    assert share(list(verdicts("normal", (1, 100), longer=2.0)), SLOWER) > 0.99


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        # Two rounds of two steps: what slows both down says nothing of either.
        ([[90, 92], [180, 184]], [[100, 102], [200, 204]], FASTER),
        ([[110, 112], [220, 224]], [[100, 102], [200, 204]], SLOWER),
        ([[102, 100], [204, 200]], [[100, 102], [200, 204]], SAME),
        ([[90, 92], [220, 224]], [[100, 102], [200, 204]], SAME),
        # 15 of 18 pairs say the opposite of the medians of all steps, 56 against 52.5.
        ([[10, 11, 12], [100, 101, 102]], [[13, 14, 15], [90, 200, 201]], SAME),
        ([[10, 11, 12], [100, 101, 102]], [[13, 14, 15], [99, 200, 201]], FASTER),
        # Two steps each come out in this order by chance in one of six comparisons.
        ([1, 2], [3, 4], UNDECIDED),
        ([1], [9] * 9, UNDECIDED),
        # A round of one of them is missing.
        ([[1, 2]], [[3, 4], [3, 4]], UNDECIDED),
        ([5.0] * 9, [5.0] * 9, SAME),
    ],
)
def test_verdicts_worked_out_by_hand(first, other, expected):
    mirrored = {FASTER: SLOWER, SLOWER: FASTER}
    assert speed(first, other) == expected
    assert speed(other, first) == mirrored.get(expected, expected)


def test_wider_limits_make_ties_and_doubt():
    """As between runs, and between a GPU and its reference."""
    assert [outcome(effect, tie=0.1, reach=0.2) for effect in (-0.3, -0.15, 0.1, 0.15, 0.3)] == [
        *(FASTER, UNDECIDED, SAME, UNDECIDED, SLOWER)
    ]


@pytest.mark.parametrize(
    ("time", "measured", "bound"),
    [
        (10.0, {"busy": 8.9}, True),
        (10.0, {"busy": 9.1}, False),
        # A replay decides, whatever the call costs the host.
        (0.3, {"busy": 0.28, "host": 0.3, "parts": 0.1}, False),
        # Without one: a call that takes no longer than it costs the host, or longer than its passes one by one.
        (0.3, {"host": 0.29}, True),
        (0.3, {"host": 0.1}, False),
        (0.42, {"parts": 0.25}, True),
        # Unless it is long.
        (26.4, {"host": 0.5, "parts": 22.0}, False),
        (1.2, {"host": 0.5, "parts": 0.5}, True),
        (10.0, {}, False),
    ],
)
def test_what_is_host_bound(time, measured, bound):
    assert host_bound(time, **measured) is bound
    columns = {name: [value, nan] for name, value in measured.items()}
    assert list(host_bound([time, time], **columns)) == [bound, False]
