"""Streams of a device: queues of work, which run concurrently on a GPU."""

from typing import Any, Protocol

import torch


class Stream(Protocol):
    """A queue of work; operations called inside `with stream:` are added to it."""

    def wait_stream(self, stream: Any) -> None:
        """Make later work in this queue wait for all work now in the other queue."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


class Event(Protocol):
    """A point in a queue of work."""

    def record(self, stream: Any = None) -> None:
        """Move to the end of a queue, or of the current one."""

    def wait(self, stream: Any) -> None:
        """Make later work in a queue wait for all work before this point."""


class HostStream:
    """A stand-in for a stream on a CPU, where an operation is complete when its call returns."""

    def wait_stream(self, stream: Any) -> None:
        """Return at once: no operation is pending on a CPU."""

    def __enter__(self) -> None:
        """Enter the context, which has no effect on a CPU."""

    def __exit__(self, *_: Any) -> None:
        """Leave the context."""


class HostEvent:
    """A stand-in for an event on a CPU."""

    def record(self, stream: Any = None) -> None:
        """Return at once: no operation is pending on a CPU."""

    def wait(self, stream: Any) -> None:
        """Return at once."""


def new_event(device: torch.device) -> Event:
    """Make an event. Recording it again takes less host time than `wait_stream`, which makes a new one."""
    return torch.cuda.Event() if device.type == "cuda" else HostEvent()


def new_stream(device: torch.device, priority: int = 0) -> Stream:
    """Make a stream; a lower priority number runs first."""
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else HostStream()


def current_stream(device: torch.device) -> Stream:
    """The current stream."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else HostStream()
