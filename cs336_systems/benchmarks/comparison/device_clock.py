"""Times, copies and comparisons that code under test cannot replace: they are bound before it is imported.

The classes and functions are PyTorch's in C, which have no attributes that could be patched.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cs336_systems.benchmarks.comparison.refusal import refuse

FLUSHED = 2**28
"""Bytes that are written before each lap, more than any L2 cache holds: as many as Triton's do_bench writes."""
AHEAD = 1_000_000
"""Cycles that the device waits before a lap, about 0.5 ms, so that the host gets ahead: if it needs no longer, a lap is
the device's time. Work that does not wait for the timed stream may hide there, but not in a trace."""
LATE_S = 1e-4
"""Seconds that the host waits for an idle device, at most."""
PERSISTING_L2 = 6
"""CUDA's number of the limit on L2 cache lines that are set aside (CU_LIMIT_PERSISTING_L2_CACHE_SIZE)."""

now = time.perf_counter
copy, _empty = torch.clone, torch.empty
_Event = torch._C._CudaEventBase
_current_stream, _set_stream = torch.cuda.current_stream, torch.cuda.set_stream
# Builds of PyTorch without CUDA lack them.
_synchronize: Any = getattr(torch._C, "_cuda_synchronize", None)
spin: Any = getattr(torch._C, "_cuda_sleep", None)


def lap(work: Callable[[], Sequence[Tensor]], device: torch.device) -> tuple[float, list[Tensor]]:
    """Time work that begins with a cold L2 cache, in seconds, and what the device does after the results are copied.

    Returns:
        The time, and copies of the results as they were when the timed stream, or on a CPU the call, was done.

    Raises:
        Unavailable: the work leaves another stream current, or returns something that may be computed later.
    """
    if device.type != "cuda":
        start = now()
        results = work()
        seconds = now() - start
        return seconds, copies_of(results)
    stream = _current_stream(device)
    begin, end, copied = (_Event(enable_timing=True) for _ in range(3))
    flush_l2(device)
    spin(AHEAD)
    begin.record(stream)
    results = work()
    end.record(stream)
    if _current_stream(device) != stream:
        _set_stream(stream)
        refuse("it leaves another stream current", foreign=True)
    copies = copies_of(results)
    copied.record(stream)
    copied.synchronize()
    start = now()
    _synchronize()
    other_streams = max(0.0, now() - start - LATE_S)
    return begin.elapsed_time(end) / 1e3 + other_streams, copies


def copies_of(results: Sequence[Tensor]) -> list[Tensor]:
    """Copy results at once.

    Raises:
        Unavailable: one is of a class that may compute when it is read.
    """
    for x in results:
        if type(x) is not Tensor:
            refuse(f"it returns a {type(x).__name__}; allowed: a plain tensor", foreign=True)
    return [copy(x).detach() for x in results]


def flush_l2(device: torch.device) -> None:
    """Make a CUDA device's L2 cache hold neither inputs nor lines that are set aside."""
    _driver().cuCtxResetPersistingL2Cache()
    _empty(FLUSHED, dtype=torch.int8, device=device).zero_()


def take_persisting_l2() -> int:
    """Set no part of the L2 cache aside any more; return the bytes that were."""
    size = ctypes.c_size_t()
    _driver().cuCtxGetLimit(ctypes.byref(size), PERSISTING_L2)  # leaves 0 where the device has no such limit
    if size.value:
        _driver().cuCtxSetLimit(PERSISTING_L2, ctypes.c_size_t(0))
    return size.value


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
