"""The one rule of every verdict on speed, and the one rule for what is host-bound. NumPy and the standard library only.

Contenders take turns, round after round, so steps of one round met the same clocks and temperature. Of two programs,
the faster one wins more than 80 % of the pairs of steps of the same round, and more than equal programs would by
chance: in 1 of 20 comparisons at most, for each direction. This is the Mann-Whitney test, stratified by round (van
Elteren 1960), with an effect size as its lower limit: programs whose samples overlap more than that are on par, however
many samples there are. Where so few steps were timed that no outcome could be significant, nothing is decided.

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
"""Share of the pairs of steps of which the faster of two programs wins more."""
CHANCE = 0.05
"""How often, at most, one of two equal programs is called faster; the same for slower."""
CRITICAL = NormalDist().inv_cdf(1 - CHANCE)
HOST_BOUND = 0.9
"""A device that works for a smaller share of a step or stage than this waits for the host: it is host-bound.

Where it works for longer, the host has a part in a tenth of the time at most, so two processes can be compared.
"""
LONG_MS, LONG_CALLS, LONG_ANYWHERE_MS = 1.0, 3, 2.0
"""A call that takes the first, and so many times what it costs the host, is device-bound whatever else it shows; the
last, if that cost is not known."""
LONGER_TOGETHER = 1.15
"""Passes in one call that take longer than this against one by one wait for the host."""


def outcome(effect: float, *, tie: float, reach: float) -> Verdict:
    """Verdict on an effect, which is above 0 where the first takes longer.

    Args:
        effect: a logarithm of times, or a share of pairs of steps.
        tie: up to this effect there is none; below 0 where nothing is proven to be one.
        reach: up to this effect it may be chance.
    """
    if abs(effect) <= tie:
        return SAME
    if abs(effect) <= reach:
        return UNDECIDED
    return SLOWER if effect > 0 else FASTER


def speed(first: ArrayLike, other: ArrayLike) -> Verdict:
    """Verdict on one program against another, whose steps were interleaved.

    Args:
        first: times of its steps, (rounds, steps), or (steps,) of one round.
        other: those of the other program, in the same unit.
    """
    a, b = numpy.atleast_2d(_column(first)), numpy.atleast_2d(_column(other))
    if len(a) != len(b):  # A round of one of them is missing.
        a, b = a.reshape(1, -1), b.reshape(1, -1)
    pairs = a[:, :, None] - b[:, None, :]
    won, lost = float((pairs < 0).mean()), float((pairs > 0).mean())
    # Variance of the share of pairs that are won, of equal programs, and half a pair for its steps.
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
    """Whether the host sets the pace, not the device; False where no instrument shows it. Numbers, or columns of them.

    For how long the device works decides, where that was measured: in the profiled step, or in a replayed CUDA graph.
    Else a call is host-bound if it takes no longer than it costs the host, or longer than its passes one by one.

    Args:
        time: of a step or call, ms.
        busy: for how long the device works in it, ms; NaN where not measured.
        host: what a call costs the host, ms; NaN where not measured.
        parts: sum of its passes, each timed alone, ms; NaN where not measured.
    """
    time, busy, host, parts = (_column(values) for values in (time, busy, host, parts))
    waits = (time > LONGER_TOGETHER * parts) | (host >= HOST_BOUND * time)
    bound = numpy.where(numpy.isnan(busy), waits & (time < needed_ms(host)), busy < HOST_BOUND * time)
    return bound if bound.ndim else bool(bound)


def needed_ms(host: ArrayLike) -> Any:
    """How long a call must take, ms, to be device-bound whatever else it shows, by what it costs the host."""
    host = _column(host)
    return numpy.where(numpy.isnan(host), LONG_ANYWHERE_MS, numpy.maximum(LONG_CALLS * host, LONG_MS))


def _column(values: ArrayLike) -> NDArray[numpy.float64]:
    return numpy.asarray(values, dtype=float)
