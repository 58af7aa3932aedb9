"""Agreement between ranks: a rank that gave up alone would leave the others waiting."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from cs336_systems.benchmarks.comparison.refusal import in_words
from cs336_systems.benchmarks.runner import CompilerFailure, reason_of, status_of
from cs336_systems.measure.memory import Unavailable, is_out_of_memory
from cs336_systems.record.measurement import Status

T = TypeVar("T")
GIVEN_UP: Mapping[Status | None, type[Exception]] = {"oom": MemoryError, "failed": CompilerFailure}
"""The exceptions that all ranks raise if an attempt failed on one, by status."""
WATCHDOG = 0.25
"""Seconds within which NCCL's watchdog, which polls every 0.1 s, releases the buffers of finished collectives."""


class OwnCodeRaises(Unavailable):
    """A user's code has raised an exception."""


def fits_on_all_ranks(attempt: Callable[[], T], device: torch.device) -> T:
    """Run an attempt that needs memory but no other rank, and return its result.

    If memory ran out or a compiler failed on any rank, all ranks raise a MemoryError or a CompilerFailure.
    """
    reasons, result = dict.fromkeys(GIVEN_UP, ""), None
    try:
        result = attempt()
    except Exception as error:
        if (status := status_of(error)) not in GIVEN_UP:
            raise
        reasons[status] = (str(error) if status == "oom" else reason_of(error)) or "out of memory"
    if any(reasons.values()):
        free_memory(device)
    for status, kind in GIVEN_UP.items():
        if reason := first_of_all_ranks(reasons[status]):
            raise kind(reason)
    assert result is not None
    return result


def available_on_all_ranks(attempt: Callable[[], T], *, own: bool = False) -> T:
    """Run an attempt that may be unavailable on any rank, and return its result.

    If it raised Unavailable on any rank, all raise it. If it runs a user's `own` code, any exception is such a reason,
    and all ranks raise OwnCodeRaises.
    """
    reason, result = "", None
    try:
        result = attempt()
    except Unavailable as error:
        reason = str(error)
    except (Exception, SystemExit) as error:
        if not own:
            raise
        reason = f"not timed: {in_words(error)}"
    if reason := first_of_all_ranks(reason):
        raise (OwnCodeRaises if own else Unavailable)(reason)
    return cast(T, result)


def first_of_all_ranks(reason: str) -> str:
    """Return the reason of the first rank that has one, or an empty text."""
    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


def free_memory(device: torch.device) -> None:
    """Free unreferenced memory; compiled graphs stay."""
    gc.collect()  # PyTorch's wrapper may be part of a cycle.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        time.sleep(WATCHDOG)
        torch.cuda.empty_cache()


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Restrict garbage collection to objects created inside this context, so that it takes milliseconds."""
    gc.collect()  # What is frozen is not freed: a model with compiled blocks is part of a cycle.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Enclose code in which ranks wait for each other: running out of memory is no result, but ends the launch.

    It becomes a RuntimeError, which ends this process; torchrun ends the others.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise RuntimeError(f"rank {dist.get_rank()} ran out of memory, but other ranks did not") from error
        raise
