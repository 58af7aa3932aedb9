"""Calls distributed over processes that have already imported everything."""

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_processes(function: Callable[..., T], calls: Sequence[Mapping[str, Any]], processes: int) -> list[T]:
    """Call a function with each mapping of keyword arguments, several at a time, and return the calls' results.

    Raises:
        ExceptionGroup: the errors of the calls that failed, once all others are done.
    """
    # A fork has its parent's imports and data: a new process takes longer to start than most calls.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _end_by_ctrl_c) as pool:
        called = [pool.submit(function, **call) for call in calls]
    if errors := [error for future in called if (error := future.exception())]:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup(f"{len(errors)} calls failed", errors)
    return [future.result() for future in called]


def _end_by_ctrl_c() -> None:
    """Let Ctrl-C end a process: if it raised KeyboardInterrupt instead, the executor would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
