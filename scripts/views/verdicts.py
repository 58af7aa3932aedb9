"""One program against another, by the rule of `cs336_systems.compare.speed`, for tables and in words."""

from dataclasses import dataclass

from numpy import array, float64
from numpy.typing import NDArray
from pandas import Series

from cs336_systems.compare.speed import CHANCE, FASTER, SAME, SLOWER, UNDECIDED, WON, Verdict, speed
from cs336_systems.record.measurement import parse_samples
from scripts.rendering.answer import NOTHING, say
from scripts.rendering.markup import Typst, measured

HOST_BOUND, TOO_FEW = "host-bound", "too few steps"
LEAST = 1.005
"""The smallest ratio that two decimals show; smaller gains are in percent."""
RULE = say(
    "Two programs are compared over all pairs of their steps or, if they took turns, over the pairs within a round. A "
    "program is called faster if it wins more than {won:percent} of the pairs and a one-sided Mann–Whitney test is "
    "significant at the {chance:percent} level; otherwise the two are on par. Programs with too few steps for a "
    "decision are not compared.",
    won=WON,
    chance=CHANCE,
)
"""The rule in a sentence."""


@dataclass(frozen=True)
class Speed:
    """One program against another in the same cell."""

    ratio: float | None
    """Time of the other over time of the first: above 1, the first is faster. None: at least one was not measured."""
    verdict: Verdict = UNDECIDED
    """Whether the first is faster, slower, or neither."""
    why: str = ""
    """Why nothing is decided."""

    @property
    def faster(self) -> bool | None:
        """Whether the first is faster; None if neither is, or it is undecided."""
        return {FASTER: True, SLOWER: False}.get(self.verdict)

    @property
    def share(self) -> float | None:
        """The share by which the first takes less or more time."""
        return abs(1 / self.ratio - 1) if self.ratio else None

    def sentence(self, first: str, other: str, where: str = "") -> Typst:
        """The verdict in words, which names the faster one first: "Ours is 1.30× as fast as B at context 512."."""
        if self.ratio is None:
            return NOTHING
        quick, slow, ratio = (other, first, 1 / self.ratio) if self.faster is False else (first, other, self.ratio)
        words = "{quick} is {ratio:times} as fast as {slow}"
        if ratio < LEAST:
            words = "{quick} is {more:percent} faster than {slow}"
        if self.verdict == SAME:
            words = "{quick} and {slow} are on par"
        if self.verdict == UNDECIDED:
            words = "{quick} and {slow} cannot be compared: {why}"
        end = " {where}." if where else "."
        begin = type(quick)(f"{quick[:1].upper()}{quick[1:]}")
        return say(words + end, quick=begin, slow=slow, ratio=ratio, more=ratio - 1, why=self.why, where=where)


def against(first: Series | None, other: Series | None) -> Speed:
    """The first program's row against the other's; None for one that was not measured.

    A row has the `median` of its times and their `samples`, and `host_bound` if known.
    """
    if first is None or other is None or not measured(first["median"]) or not measured(other["median"]):
        return Speed(None)
    ratio = float(other["median"] / first["median"])
    if any(bool(row.get("host_bound", False)) for row in (first, other)):
        return Speed(ratio, why=HOST_BOUND)
    verdict = speed(samples_by_round(first), samples_by_round(other))
    return Speed(ratio, verdict, TOO_FEW if verdict == UNDECIDED else "")


def samples_by_round(row: Series) -> NDArray[float64]:
    """The samples of a row, a line per round; in one line if contenders did not take turns."""
    samples = row["samples"]
    samples = array((parse_samples(samples) if isinstance(samples, str) else samples) or [row["median"]])
    return samples.reshape(-1, row["steps"] if "rounds" in row else len(samples))
