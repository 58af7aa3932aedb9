"""Streams of a device: queues of work, which run concurrently on a GPU."""

import contextlib
from typing import Any

import torch


class HostStream(contextlib.nullcontext[None]):
    """A stand-in for a stream on a CPU, where an operation is complete when its call returns."""

    def wait_stream(self, stream: object) -> None:
        """Return at once: no operation is pending on a CPU."""


Stream = Any
"""A torch.cuda.Stream or a HostStream; operations called inside `with stream:` are added to it."""


def new_event(device: torch.device) -> Any:
    """Make an event. Recording it again takes less host time than `wait_stream`, which makes a new one."""
    return torch.cuda.Event() if device.type == "cuda" else torch.cpu.Event()


def new_stream(device: torch.device, priority: int = 0) -> Stream:
    """Make a stream; a lower priority number runs first."""
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else HostStream()


def current_stream(device: torch.device) -> Stream:
    """The current stream."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else HostStream()
