"""A side stream on which collectives overlap with compute."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager


class Waitable(Protocol):
    """The handle of an asynchronous collective."""

    def wait(self) -> object:
        """Return as soon as the result can be used."""


Send = Callable[[bool], Waitable | None]
"""Starts collectives; the argument says whether they may still run when it returns."""


class Transfer:
    """Collectives in flight, and the tensors that they read."""

    def __init__(self, wait: Callable[[], None], reads: Sequence[Tensor]):
        self._wait: Callable[[], None] | None = wait
        self._reads = reads  # Memory that only the communication stream may reuse early.

    def wait(self) -> None:
        """Wait for the result, the first time: on a GPU the current stream waits, not the host."""
        if self._wait is not None:
            self._wait()
            self._wait, self._reads = None, ()


class CommunicationStream:
    """A communication stream: on a GPU a separate CUDA stream, on a CPU the backend's threads.

    Each collective starts after all work already queued on the current stream. So the host can free memory allocated on
    this stream as soon as the last kernel that reads it is launched: the stream reuses it only afterwards.
    """

    def __init__(self, device: torch.device):
        self.device = device
        # High priority: its kernels are short, and the next layer waits for them.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def start(self, send: Send, then: Callable[[], None] = lambda: None, reads: Sequence[Tensor] = ()) -> Transfer:
        """Start collectives, which `send` starts and whose outputs it may allocate; then call `then` on their result.

        All ranks start them in the same order. `reads` are inputs allocated on other streams that nothing else keeps
        alive until `wait`.
        """
        if self._stream is None:
            work = send(True)
            return Transfer(partial(finish_on_host, work, then), reads)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            send(False)  # without an intermediate stream of the backend
            then()
            done = self._stream.record_event()
        return Transfer(lambda: torch.cuda.current_stream(done.device).wait_event(done), reads)


def finish_on_host(work: Waitable | None, then: Callable[[], None]) -> None:
    """Wait for the collectives, then call `then`."""
    if work is not None:
        work.wait()
    then()


def as_one_call(
    collectives: Sequence[Callable[..., Waitable | None]], group: dist.ProcessGroup, asynchronous: bool
) -> Waitable | None:
    """Start collectives of one kind in one call: NCCL runs them as one kernel, without copies into a bucket."""
    if len(collectives) == 1:
        return collectives[0](group=group, async_op=asynchronous)
    with _coalescing_manager(group, async_ops=asynchronous) as manager:
        for collective in collectives:
            collective(group=group)
    return manager
