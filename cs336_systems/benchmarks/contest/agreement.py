"""What all ranks agree on before they go on: one that gave up alone would leave the others waiting for it."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import psutil
import torch
import torch.distributed as dist

from cs336_systems.benchmarks.contest.refusal import in_words
from cs336_systems.measure.memory import Unavailable, in_use, is_out_of_memory
from cs336_systems.parallel.gather import gather

T = TypeVar("T")


def fits_on_all_ranks(attempt: Callable[[], T], device: torch.device) -> T:
    """What an attempt returns that needs no other rank, but memory.

    Raises:
        MemoryError: on all ranks, if it ran out on any.
    """
    reason, result = "", None
    try:
        result = attempt()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error) or "out of memory"
    if reason:
        free_memory(device)
    if reason := first_of_all_ranks(reason):
        raise MemoryError(reason)
    assert result is not None
    return result


def available_on_all_ranks(attempt: Callable[[], T], *, own: bool = False) -> T:
    """What an attempt returns.

    Args:
        attempt: which raises `Unavailable` if it cannot be made here.
        own: whether it is of a user's code, of which any exception is a reason to go on without it.

    Raises:
        Unavailable: on all ranks, if an attempt failed on any.
    """
    reason, result = "", None
    try:
        result = attempt()
    except Unavailable as error:
        reason = str(error)
    except Exception as error:
        if not own:
            raise
        reason = f"not timed: {in_words(error)}"
    if reason := first_of_all_ranks(reason):
        raise Unavailable(reason)
    return cast(T, result)


def first_of_all_ranks(reason: str) -> str:
    """The reason of the first rank that has one, or nothing."""
    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


def check_memory(needed: int, device: torch.device) -> None:
    """Check that all ranks have so many bytes of memory to spare.

    Raises:
        Unavailable: on all ranks, if one has not.
    """
    dist.barrier()  # Now all have freed what they had before.
    least = min(rank[0] for rank in gather([spare_memory(device)], device))
    if needed > least:
        raise Unavailable(f"each process needs {needed / 1e9:.1f} GB of memory, and {least / 1e9:.1f} GB are free")


def spare_memory(device: torch.device) -> int:
    """Bytes that this rank can still have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - in_use(device)
    return psutil.virtual_memory().available // dist.get_world_size()


def free_memory(device: torch.device) -> None:
    """Free what nothing refers to any more; compiled graphs stay."""
    gc.collect()  # PyTorch's wrapper may be part of a cycle.
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """While this lasts, the garbage collector looks only at what is made meanwhile, in milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """While this lasts, ranks wait for each other, so that one that runs out of memory has to end the launch.

    Raises:
        RuntimeError: it ran out. As an error that is no result it ends this process, and torchrun then the others.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise RuntimeError(f"rank {dist.get_rank()} ran out of memory among others that did not") from error
        raise
