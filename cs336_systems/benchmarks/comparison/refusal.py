"""Reject contenders whose results are wrong, or whose own code raises."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch

from cs336_systems.benchmarks.runner import first_line, is_compiler_failure
from cs336_systems.folder_modules import MissingPackage
from cs336_systems.measure.memory import Unavailable, is_out_of_memory

NO_BACKWARD = "implement either the backward"
"""PyTorch's message for an autograd.Function that has only a forward pass."""


def refuse(why: str, *, foreign: bool) -> NoReturn:
    """Reject a contender before it is timed, for a reason in a few words.

    The comparison continues without a library's or a user's (`foreign`), which is Unavailable. An error of this
    project's is a bug: an AssertionError.
    """
    raise Unavailable(f"not timed: {why}") if foreign else AssertionError(why)


@contextlib.contextmanager
def errors_of_own_code(*, own: bool) -> Iterator[None]:
    """Convert exceptions of a user's code into Unavailable, the reason why it is not timed; do nothing for other code.

    Out of memory and a compiler's failure are passed on.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if not own or isinstance(error, Unavailable) or is_out_of_memory(error) or is_compiler_failure(error):
            raise
        if torch.cuda.is_initialized():
            # Raises if the code has broken the CUDA context: then nothing else can be measured in this process.
            torch.cuda.synchronize()
        raise Unavailable(f"not timed: {in_words(error)}") from error


def in_words(error: BaseException) -> str:
    """Describe an exception of a user's code: with its own message if something is not supported."""
    text = first_line(error) if str(error).strip() else ""
    if isinstance(error, NotImplementedError) and NO_BACKWARD in text:
        return "it has no backward pass"
    if isinstance(error, NotImplementedError | MissingPackage) and text:
        return text
    return ": ".join(filter(None, [f"it raises {type(error).__name__}", text]))
