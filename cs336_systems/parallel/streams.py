"""Streams of a device: queues of work, of which those on a GPU run beside each other."""

from typing import Any, Protocol

import torch


class Stream(Protocol):
    """A queue of work; `with stream:` puts into it what is called meanwhile."""

    def wait_stream(self, stream: Any) -> None:
        """Begin what is put into this queue from now on when all that is in the other one is done."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


class HostStream:
    """What takes a stream's place on a CPU, where an operation is over when its call returns."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is ever left to wait for."""

    def __enter__(self) -> None:
        """Begin what on a GPU would be put into this queue."""

    def __exit__(self, *_: Any) -> None:
        """End it."""


def new_stream(device: torch.device, priority: int = 0) -> Stream:
    """A stream of its own; what has a lower priority number runs first."""
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else HostStream()


def current_stream(device: torch.device) -> Stream:
    """The stream that operations are put into at present."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else HostStream()
