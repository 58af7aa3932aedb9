"""The rule for every verdict on speed, and the rule for host-bound times. NumPy and the standard library only.

Contenders take turns, round after round, so steps of one round run at the same clocks and temperature. Of two programs,
the faster one wins more than 80 % of the pairs of steps of the same round, and more than equal programs would by chance
in at most 1 of 20 comparisons per direction. This is the Mann-Whitney test, stratified by round (van Elteren 1960),
with an effect size as its lower limit: programs whose samples overlap more are on par, regardless of the number of
samples. If too few steps were timed for a significant outcome, nothing is decided.

Two runs, or a GPU and its reference, differ by more than their samples show: `outcome` accepts wider limits for them.
"""

import math
from statistics import NormalDist
from typing import Any, Literal

import numpy
from numpy.typing import ArrayLike, NDArray

Verdict = Literal["faster", "same", "slower", "cannot be decided"]
FASTER: Verdict = "faster"
SAME: Verdict = "same"
SLOWER: Verdict = "slower"
UNDECIDED: Verdict = "cannot be decided"
VERDICTS: tuple[Verdict, ...] = (FASTER, SAME, SLOWER, UNDECIDED)

WON = 0.8
"""Share of the pairs of steps that the faster of two programs has to exceed."""
CHANCE = 0.05
"""Maximum probability of calling one of two equal programs faster; the same for slower."""
CRITICAL = NormalDist().inv_cdf(1 - CHANCE)
HOST_BOUND = 0.9
"""If the device is busy for a smaller share of a step or stage, it waits for the host: the step is host-bound.

Above it, the host affects at most a tenth of the time, so two processes can be compared.
"""
LONG_MS, LONG_CALLS, LONG_ANYWHERE_MS = 1.0, 3, 2.0
"""A call is always device-bound if it takes at least the first, in ms, and this multiple of its host overhead; or at
least the last, in ms, if the overhead is not known."""
LONGER_TOGETHER = 1.15
"""If both passes in one call take longer than this relative to separate passes, they wait for the host."""


def outcome(effect: float, *, tie: float, reach: float) -> Verdict:
    """Return the verdict on an effect, which is positive if the first takes longer.

    Args:
        effect: a logarithm of times, or a share of pairs of steps.
        tie: effects up to this count as none; negative if nothing counts as a tie.
        reach: effects up to this may be due to chance.
    """
    if abs(effect) <= tie:
        return SAME
    if abs(effect) <= reach:
        return UNDECIDED
    return SLOWER if effect > 0 else FASTER


def speed(first: ArrayLike, other: ArrayLike) -> Verdict:
    """Return the verdict on one program against another, with interleaved steps.

    Args:
        first: times of its steps, (rounds, steps), or (steps,) of one round.
        other: times of the other program, in the same unit.
    """
    a, b = numpy.atleast_2d(_column(first)), numpy.atleast_2d(_column(other))
    if len(a) != len(b):  # A round of one of them is missing.
        a, b = a.reshape(1, -1), b.reshape(1, -1)
    pairs = a[:, :, None] - b[:, None, :]
    won, lost = float((pairs < 0).mean()), float((pairs > 0).mean())
    # Variance of the share of won pairs for equal programs, and half a pair for its discreteness.
    deviation = math.sqrt((a.shape[1] + b.shape[1] + 1) / (12 * pairs.size))
    reach = CRITICAL * deviation + 0.5 / pairs.size
    if reach >= 0.5:
        return UNDECIDED
    effect = (lost - won) / 2
    # Rounds may differ so much that the medians of all steps contradict the pairs.
    agree = effect * (numpy.median(a) - numpy.median(b)) > 0
    return outcome(effect if agree else 0.0, tie=WON - 0.5, reach=reach)


def host_bound(
    time: ArrayLike, busy: ArrayLike = math.nan, *, host: ArrayLike = math.nan, parts: ArrayLike = math.nan
) -> Any:
    """Whether the host limits the time, not the device; False if no instrument shows it. Numbers, or columns of them.

    The device's busy time decides if it was measured, in the profiled step or in a replayed CUDA graph. Otherwise a
    call is host-bound if it takes no longer than its host overhead, or longer than its separate passes.

    Args:
        time: of a step or call, ms.
        busy: the device's busy time in it, ms; NaN if not measured.
        host: host overhead of a call, ms; NaN if not measured.
        parts: sum of its passes, each timed alone, ms; NaN if not measured.
    """
    time, busy, host, parts = (_column(values) for values in (time, busy, host, parts))
    waits = (time > LONGER_TOGETHER * parts) | (host >= HOST_BOUND * time)
    bound = numpy.where(numpy.isnan(busy), waits & (time < needed_ms(host)), busy < HOST_BOUND * time)
    return bound if bound.ndim else bool(bound)


def needed_ms(host: ArrayLike) -> Any:
    """Minimum time of a call, ms, to be always device-bound, given its host overhead."""
    host = _column(host)
    return numpy.where(numpy.isnan(host), LONG_ANYWHERE_MS, numpy.maximum(LONG_CALLS * host, LONG_MS))


def _column(values: ArrayLike) -> NDArray[numpy.float64]:
    return numpy.asarray(values, dtype=float)
