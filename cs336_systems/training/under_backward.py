"""Optimizer updates that run during the backward pass."""

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from cs336_systems.parallel.distributed_parameters import own_part
from cs336_systems.parallel.synchronized import release, uses_up
from cs336_systems.training.spare_sms import updating

IN_FLIGHT = 512 * 2**20
"""Bytes of gradients with pending updates above which the backward pass waits for the oldest."""


class UnderBackward:
    """Hooks that update each parameter as soon as its gradient is accumulated, and free the gradient.

    On a GPU the updates run on a separate stream. The stream that called backward waits for them at its end. Hooks that
    run outside a backward pass, such as FullyShardedDataParallel's, update on the current stream.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        update: Callable[[nn.Parameter, Tensor], None],
        on_removal: Callable[[], None],
    ):
        """Install hooks that call `update` on the current stream with each parameter and its gradient.

        All parameters require gradients, which are complete when hooks run. `remove` calls `on_removal`.
        """
        self._apply = update
        self._on_removal = on_removal
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._in_flight: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self._bytes = 0
        self._backward = -1
        self._trained = list(parameters)
        uses_up(self, self._trained, "MasterAdamW.during_backward")
        self._handles = [p.register_post_accumulate_grad_hook(self._update) for p in self._trained]

    def remove(self) -> None:
        """Remove the hooks: gradients are kept again, for the optimizer's step. A second call does nothing."""
        if self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            updating.difference_update(self._streams)  # after a backward pass that raised an error
            release(self)
            self._on_removal()

    @torch.no_grad()
    def _update(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        assert parameter.grad is not None, "the hook runs after accumulation"
        if parameter.is_cuda and torch._C._current_graph_task_id() != -1:
            self._update_aside(parameter, parameter.grad)
        else:
            self._apply(parameter, parameter.grad)
        parameter.grad = None

    def _update_aside(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        backward = torch._C._current_graph_task_id()  # another one after a backward pass that raised an error
        if backward != self._backward:
            self._backward = backward
            updating.add(parameter.device)
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        side = self._stream(parameter.device)
        side.wait_stream(torch.cuda.current_stream(parameter.device))
        with torch.cuda.stream(side):
            self._apply(parameter, gradient)
            done = side.record_event()
        # The allocator may reuse the gradient's memory once its update is done, so the backward pass waits for that;
        # record_stream would keep all gradients of a step captured in a CUDA graph.
        self._in_flight.append((gradient, done))
        self._bytes += own_part(gradient).nbytes
        while self._bytes > IN_FLIGHT:
            self._free_oldest()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _free_oldest(self) -> None:
        gradient, done = self._in_flight.popleft()
        self._bytes -= own_part(gradient).nbytes
        torch.cuda.current_stream(gradient.device).wait_event(done)

    def _finish(self) -> None:
        """Wait for all updates; the engine calls this at the end of the backward pass."""
        updating.difference_update(self._streams)
        while self._in_flight:
            self._free_oldest()
