"""CUDA graphs of calls that have already run on a separate stream."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")

CALLS_OF_DDP = 11
"""Calls before a capture: DistributedDataParallel queries events in its first ten steps, which a capture forbids."""

WARM_UP_CALLS = 2
"""Calls before any other capture: kernels are compiled, and the optimizer's state is allocated."""


def calls_before_capture(model: nn.Module | None) -> int:
    """Eager calls of a step before its capture, given its model or the model's wrapper."""
    return CALLS_OF_DDP if isinstance(model, DistributedDataParallel) else WARM_UP_CALLS


def run_on(stream: torch.cuda.Stream, call: Callable[[], T]) -> T:
    """Run a call on a stream, between what the current stream did before and does next; return its result."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        result = call()
    current.wait_stream(stream)
    return result


def capture(stream: torch.cuda.Stream, call: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a call on a stream without running it; return its graph, and its result, which replays overwrite.

    Everything it launches must have run before (see `run_on`), so that kernels are compiled and libraries initialized.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return graph, result
