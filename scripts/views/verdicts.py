"""Whether one time is shorter than another: told, or not to be told."""

from dataclasses import dataclass

from pandas import Series

from scripts.rendering.answer import NOTHING, say
from scripts.rendering.markup import Typst, measured


@dataclass(frozen=True)
class Speed:
    """One program against another in the same cell."""

    ratio: float | None
    """Time of the other over that of the first: above 1, the first is faster. None: not both were measured."""
    why_untold: str = ""
    """The obstacle to a verdict: "host-bound", or "closer than their spread"; empty if nothing does."""

    @property
    def faster(self) -> bool | None:
        """Whether the first is the faster one; None if that cannot be told."""
        return None if self.ratio is None or self.why_untold else self.ratio > 1

    def sentence(self, first: str, other: str, where: str = "") -> Typst:
        """The verdict in words, which names the faster one first: "Ours is 1.30× as fast as B at context 512."."""
        quick, slow, ratio = first, other, self.ratio
        if self.faster is False and ratio:
            quick, slow, ratio = other, first, 1 / ratio
        words = "{quick} is {ratio:times} as fast as {slow}"
        if self.why_untold:
            words = "{quick} and {slow} cannot be told apart: they are {why}"
        end = " {where}." if where else "."
        begin = type(quick)(f"{quick[:1].upper()}{quick[1:]}")
        known = None if ratio is None else {"quick": begin, "slow": slow, "ratio": ratio, "why": self.why_untold}
        return say(words + end, **known, where=where) if known else NOTHING


def speed(first: Series | None, other: Series | None) -> Speed:
    """The first program's row against the other's; None for one that was not measured.

    A row has the `median` of its times, the percentiles `p20` and `p80`, and `host_bound` where that is known.
    """
    if first is None or other is None or not measured(first["median"]) or not measured(other["median"]):
        return Speed(None)
    ratio = float(other["median"] / first["median"])
    if any(bool(row.get("host_bound", False)) for row in (first, other)):
        return Speed(ratio, "host-bound")
    reach = [other["p20"] / first["p80"], other["p80"] / first["p20"]]
    return Speed(ratio, "closer than their spread" if min(reach) <= 1 <= max(reach) else "")
