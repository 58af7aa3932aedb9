"""Times, copies and comparisons that code under test cannot replace: they are bound before it is imported.

The classes and functions are PyTorch's C ones, without attributes that could be patched.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cs336_systems.benchmarks.comparison.refusal import refuse

FLUSHED = 2**28
"""Bytes written before each lap, larger than any L2 cache: as many as in Triton's do_bench."""
AHEAD = 1_000_000
"""Cycles that the device waits before a lap, about 0.5 ms, so that the host gets ahead: if the host needs no longer, a
lap is the device's time. Work that does not wait for the timed stream may hide in this wait, but not in a trace."""
LATE_S = 1e-4
"""Maximum number of seconds that the host waits for an idle device."""
PERSISTING_L2 = 6
"""CUDA's number for the limit on reserved L2 cache lines (CU_LIMIT_PERSISTING_L2_CACHE_SIZE)."""

now = time.perf_counter
copy, _empty = torch.clone, torch.empty
_Event = torch._C._CudaEventBase
_current_stream, _set_stream = torch.cuda.current_stream, torch.cuda.set_stream
# Builds of PyTorch without CUDA lack them.
_synchronize: Any = getattr(torch._C, "_cuda_synchronize", None)
spin: Any = getattr(torch._C, "_cuda_sleep", None)


def lap(work: Callable[[], Sequence[Tensor]], device: torch.device) -> tuple[float, list[Tensor]]:
    """Time work that starts with a cold L2 cache, in seconds, and any device work after the results are copied.

    Returns the time, and copies of the results at the moment when the timed stream, or on a CPU the call, was done.
    Work that leaves another stream current is refused, and so is a result that may be computed later.
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
    """Copy results at once; one of a class that may compute when it is read is refused."""
    for x in results:
        if type(x) is not Tensor:
            refuse(f"it returns a {type(x).__name__}; allowed: a plain tensor", foreign=True)
    return [copy(x).detach() for x in results]


def flush_l2(device: torch.device) -> None:
    """Clear inputs and reserved lines from a CUDA device's L2 cache."""
    _driver().cuCtxResetPersistingL2Cache()
    _empty(FLUSHED, dtype=torch.int8, device=device).zero_()


def take_persisting_l2() -> int:
    """Stop reserving a part of the L2 cache; return the bytes that were reserved."""
    size = ctypes.c_size_t()
    _driver().cuCtxGetLimit(ctypes.byref(size), PERSISTING_L2)  # stays 0 if the device has no such limit
    if size.value:
        _driver().cuCtxSetLimit(PERSISTING_L2, ctypes.c_size_t(0))
    return size.value


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
