"""CUDA graphs of calls that have already run on a separate stream."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

CALLS_OF_DDP = 11
"""Calls before a capture: DistributedDataParallel queries events in its first ten steps, which a capture forbids."""


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
