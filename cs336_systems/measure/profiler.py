"""PyTorch's profiler, without an effect on later timings."""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cs336_systems.measure.timing import synchronize

DETACH_CALLS, DETACH_PAUSE_S = 20, 0.01


@contextlib.contextmanager
def profiling(device: torch.device, *, operators: bool) -> Iterator[profile]:
    """Profile the enclosed code: kernels and copies on a CUDA device and, if wanted, operators on the host.

    PyTorch leaves CUPTI attached after a profile, which makes every later launch 10 to 20 % more expensive on the host
    (pytorch/pytorch#146604). An environment variable makes it detach CUPTI, but from a thread, during a later CUDA
    call, and a profile that starts earlier records no kernels (pytorch/kineto#1554). So this function makes such calls
    and waits.
    """
    on_gpu = device.type == "cuda"
    os.environ["TEARDOWN_CUPTI"] = "1"  # read again at the end of each profile
    activities = [ProfilerActivity.CPU] * operators + [ProfilerActivity.CUDA] * on_gpu
    with warnings.catch_warnings():
        # Keeping events across cycles would make PyTorch read all of them at once, in Python: seconds per step.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle")
        with profile(activities=activities) as profiler:
            yield profiler
            synchronize(device)
    if on_gpu:
        for _ in range(DETACH_CALLS):
            time.sleep(DETACH_PAUSE_S)
            synchronize(device)


def events_of(profiler: profile, kind: str = "CUDA") -> list[Any]:
    """The events of a kind of device in an ended profile: of CUDA its kernels, copies and fills."""
    results = profiler.profiler.kineto_results if profiler.profiler else None
    assert results is not None, "the profile has ended"
    return [event for event in results.events() if event.device_type().name == kind]
