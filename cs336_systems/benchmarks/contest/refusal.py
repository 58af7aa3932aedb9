"""What becomes of a contender that is not what it is called, or that is a user's and raises."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch

from cs336_systems.benchmarks.runner import first_line, is_compiler_failure
from cs336_systems.measure.memory import Unavailable, is_out_of_memory


def refuse(why: str, *, foreign: bool) -> NoReturn:
    """Keep a contender from being timed.

    Args:
        why: what is wrong with it, in a few words.
        foreign: whether it is a library's, or a user's: then the contest goes on without it.

    Raises:
        Unavailable: it is a library's, or a user's.
        AssertionError: it is this project's, and what is wrong is a bug.
    """
    raise Unavailable(f"not timed: {why}") if foreign else AssertionError(why)


@contextlib.contextmanager
def errors_of_own_code(*, own: bool) -> Iterator[None]:
    """Turn what a user's code raises into the reason why it is not timed; do nothing around other code.

    Out of memory and a compiler's failure stay what they are.

    Raises:
        Unavailable: the code raises; of NotImplementedError, its text.
    """
    try:
        yield
    except Exception as error:
        if not own or isinstance(error, Unavailable) or is_out_of_memory(error) or is_compiler_failure(error):
            raise
        if torch.cuda.is_initialized():
            # Raises if the code has broken the CUDA context: nothing else could be measured in this process.
            torch.cuda.synchronize()
        raise Unavailable(f"not timed: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """What a user's code raises: its own words where it says that it does not support something."""
    text = first_line(error) if str(error).strip() else ""
    if isinstance(error, NotImplementedError) and text:
        return text
    return ": ".join(filter(None, [f"it raises {type(error).__name__}", text]))
