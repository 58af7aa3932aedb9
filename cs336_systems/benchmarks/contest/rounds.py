"""Rounds, in each of which every contender has its turn: a ratio of two then holds on a machine that gets slower.

Before its first turn a contender is checked: what is not what it is called has none.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from cs336_systems.measure.memory import Unavailable

C = TypeVar("C")
T = TypeVar("T")


def take_turns(
    contenders: Iterable[C], rounds: int, check: Callable[[C], None], turn: Callable[[C], T]
) -> tuple[dict[C, list[T]], dict[C, str]]:
    """Each contender's turns, round by round; and of those that cannot have theirs, the reason."""
    turns: dict[C, list[T]] = {contender: [] for contender in contenders}
    refused: dict[C, str] = {}
    for _ in range(rounds):
        for contender in list(turns):
            try:
                if not turns[contender]:  # Not all at first: the floor comes before what libraries allocate once.
                    check(contender)
                turns[contender].append(turn(contender))
            except Unavailable as error:
                del turns[contender]
                refused[contender] = str(error)
    return turns, refused
