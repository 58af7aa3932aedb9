"""What becomes of a contender that is not what it is called."""

from typing import NoReturn

from cs336_systems.measure.memory import Unavailable


def refuse(why: str, *, foreign: bool) -> NoReturn:
    """Keep a contender from being timed.

    Args:
        why: what is wrong with it, in a few words.
        foreign: whether it is a library's: then the contest goes on without it.

    Raises:
        Unavailable: it is a library's.
        AssertionError: it is this project's, and what is wrong is a bug.
    """
    raise Unavailable(f"not timed: {why}") if foreign else AssertionError(why)
