"""Calls shared out over processes that have everything imported already."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_processes(function: Callable[..., T], calls: Sequence[Mapping[str, Any]], processes: int) -> list[T]:
    """Call a function with each mapping of keyword arguments, so many at a time, and return what the calls do.

    Raises:
        ExceptionGroup: the errors of the calls that failed, once all others are done.
    """
    # A fork has what its parent has imported and loaded: to start anew takes longer than most calls.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        called = [pool.submit(function, **call) for call in calls]
    if errors := [error for future in called if (error := future.exception())]:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup(f"{len(errors)} calls failed", errors)
    return [future.result() for future in called]
