"""Interleave contenders round by round, so that ratios stay valid on a machine that slows down.

A contender is checked before its first turn, and rejected if its results are wrong.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from cs336_systems.measure.memory import Unavailable

C = TypeVar("C")
T = TypeVar("T")


def take_turns(
    contenders: Iterable[C], rounds: int, check: Callable[[C], None], turn: Callable[[C], T]
) -> tuple[dict[C, list[T]], dict[C, str]]:
    """Run each contender's turns, round by round; return them, and the reasons of rejected contenders."""
    turns: dict[C, list[T]] = {contender: [] for contender in contenders}
    refused: dict[C, str] = {}
    for _ in range(rounds):
        for contender in list(turns):
            try:
                if not turns[contender]:  # Not all at once: the baseline precedes libraries' one-time allocations.
                    check(contender)
                turns[contender].append(turn(contender))
            except Unavailable as error:
                del turns[contender]
                refused[contender] = str(error)
    return turns, refused
