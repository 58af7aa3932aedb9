"""Streams of a device: queues of work, which run concurrently on a GPU."""

from typing import Any, Protocol

import torch


class Stream(Protocol):
    """A queue of work; operations called inside `with stream:` are put into it."""

    def wait_stream(self, stream: Any) -> None:
        """Make later work in this queue wait for all work that is in the other queue now."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


class HostStream:
    """A stand-in for a stream on a CPU, where an operation is complete when its call returns."""

    def wait_stream(self, stream: Any) -> None:
        """Return at once: no operation is pending on a CPU."""

    def __enter__(self) -> None:
        """Enter the context, which has no effect on a CPU."""

    def __exit__(self, *_: Any) -> None:
        """Leave the context."""


def new_stream(device: torch.device, priority: int = 0) -> Stream:
    """Make a stream; a lower priority number runs first."""
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else HostStream()


def current_stream(device: torch.device) -> Stream:
    """The stream that receives operations at present."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else HostStream()
