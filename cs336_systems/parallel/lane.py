"""Collectives that run beside the computation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager


class Waitable(Protocol):
    """What an asynchronous collective returns."""

    def wait(self) -> object:
        """Return once the result can be used."""


Send = Callable[[bool], Waitable | None]
"""Starts collectives; the argument says whether they may still run when it returns."""


class Transfer:
    """Collectives under way, and the tensors that they read."""

    def __init__(self, wait: Callable[[], None], reads: Sequence[Tensor]):
        self._wait: Callable[[], None] | None = wait
        self._reads = reads  # Memory that other streams than the lane's must not reuse too early.

    def wait(self) -> None:
        """Wait for the result, the first time: on a GPU the current stream waits, not the host."""
        if self._wait is not None:
            self._wait()
            self._wait, self._reads = None, ()


class Lane:
    """One queue of collectives: on a GPU a stream of its own, on a CPU the backend's threads.

    Each starts when all is done that the current stream has been given before. So memory that the lane allocates can be
    freed by the host as soon as the last kernel that reads it is launched: the lane reuses it only after that kernel.
    """

    def __init__(self, device: torch.device):
        self.device = device
        # Of high priority: its kernels are short, and the next layer waits for them.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def start(self, send: Send, then: Callable[[], None] = lambda: None, reads: Sequence[Tensor] = ()) -> Transfer:
        """Start collectives. All ranks do so in the same order.

        Args:
            send: starts them. It may allocate what they write.
            then: what is to be done with their result.
            reads: what they read of the memory of other streams, if nobody else keeps it until they are waited for.
        """
        if self._stream is None:
            work = send(True)
            return Transfer(partial(finish_on_host, work, then), reads)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            send(False)  # without a stream of the backend's own in between
            then()
            done = self._stream.record_event()
        return Transfer(lambda: torch.cuda.current_stream(done.device).wait_event(done), reads)


def finish_on_host(work: Waitable | None, then: Callable[[], None]) -> None:
    """Wait for the collectives, and do what comes after them."""
    if work is not None:
        work.wait()
    then()


def as_one_call(
    collectives: Sequence[Callable[..., Waitable | None]], group: dist.ProcessGroup, asynchronous: bool
) -> Waitable | None:
    """Start collectives of one kind together: NCCL makes one kernel of them, without copies to bring them together."""
    if len(collectives) == 1:
        return collectives[0](group=group, async_op=asynchronous)
    with _coalescing_manager(group, async_ops=asynchronous) as manager:
        for collective in collectives:
            collective(group=group)
    return manager
