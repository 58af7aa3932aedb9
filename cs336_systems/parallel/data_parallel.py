"""Data parallelism, from naive to bucketed: ranks hold the same model, share a batch, and average their gradients.

    model = BucketedDataParallel(model, bucket_size_mb=25)
    loss(model(inputs), targets).backward()
    model.finish_gradient_synchronization()
    optimizer.step()

The loss is a mean over the rank's examples. All ranks have the same number of examples, so the mean of the ranks'
gradients is the gradient of the whole batch. To save the model, save the `state_dict` of `model.module`, which any bare
model loads; the wrapper's own `state_dict` has `module.` before each name, like PyTorch's.
"""

import copy
import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.parallel.buckets import MB, Bucket, fill_buckets
from cs336_systems.parallel.collectives import absent_everywhere, averaging
from cs336_systems.parallel.replicas import replicate
from cs336_systems.parallel.synchronized import check_not_used_up, check_unwrapped, registrations, synchronizes
from cs336_systems.parallel.wrapped_module import WrappedModule


class DataParallel(WrappedModule, ABC):
    """Base class of the wrappers, which copies rank 0's model to every rank and rejects invalid steps.

    After `finish_gradient_synchronization()` each gradient is its mean over the ranks, bitwise identical on all of
    them. If only some ranks have a gradient, the others count as zeros; if none has one, it remains None.

    Buffers are broadcast once, at wrapping; what a forward pass later writes to them stays on its rank.

    Add parameters, and set `requires_grad`, dtype and device, before wrapping: a module that changed is refused. A
    parameter may be frozen afterwards, and trained again; one that was frozen when wrapped stays frozen. If a module is
    wrapped again, its older wrapper is refused. Layers with sparse gradients are refused. A deep copy trains in the
    same process group. A later step may overwrite gradients in place: clone those that you keep.
    """

    _buckets: Sequence[Bucket]

    def __init__(self, module: nn.Module, *, process_group: dist.ProcessGroup | None = None):
        """Wrap a module on every rank, and broadcast rank 0's parameters and buffers.

        Args:
            module: the module to train.
            process_group: the ranks that share a batch; None: all. Rank 0 means the group's first rank.

        Raises:
            ValueError: the ranks' modules differ, none of their parameters requires a gradient, a layer has sparse
                gradients, a tensor is on the meta device or sharded, gradients are consumed in the backward pass, a
                submodule is itself a wrapper, or this process is not in the group.
        """
        super().__init__(module)
        check_unwrapped(module)
        check_not_used_up(module.parameters(), type(self).__name__)
        self.process_group = process_group
        replicate(module, process_group)
        # The backward pass computes gradients in roughly this order.
        trainable = [named for named in reversed(list(module.named_parameters())) if named[1].requires_grad]
        if not trainable:
            raise ValueError("the module has no parameter that requires a gradient: there is nothing to synchronize")
        self._names = [name for name, _ in trainable]
        self._trainable = [parameter for _, parameter in trainable]
        self._frozen = [named for named in module.named_parameters() if not named[1].requires_grad]
        self._device_of_first = self._trainable[0].device
        self._dtypes = [parameter.dtype for parameter in self._trainable]
        self._registrations = registrations()
        self._arrived: set[int] = set()  # whose gradients this step's backward pass has computed
        self._all_used = torch.ones(len(trainable), dtype=torch.uint8, device=self._trainable[0].device)
        self._register_hooks()

    @property
    def messages(self) -> int:
        """All-reduces of gradients in a step."""
        return len(self._buckets)

    def _register_hooks(self) -> None:
        # Hooks hold no reference to the wrapper: parameter, hook, wrapper and module would be a cycle, which only the
        # garbage collector frees.
        this = weakref.ref(self)
        self._removals = []
        for index, parameter in enumerate(self._trainable):
            handle = parameter.register_post_accumulate_grad_hook(arrival_hook(this, index))
            self._removals.append(weakref.finalize(self, handle.remove))
        synchronizes(self, self._trainable)

    def retire(self, by: str) -> None:
        """Remove the hooks, since another wrapper averages the gradients; later use raises an error."""
        super().retire(by)
        for remove in self._removals:
            remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.process_group)] = self.process_group  # which cannot be copied
        memo[id(self._removals)] = []  # of other hooks
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied._register_hooks()  # PyTorch copies parameters without their hooks.
        return copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled; allowed: the state_dict() of its module")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output.

        Raises:
            RuntimeError: the gradients of the last backward pass were not synchronized, the parameters changed in
                dtype, device or `requires_grad` since they were wrapped, some were added or replaced, or the module was
                wrapped again.
        """
        if torch.is_grad_enabled():
            self._check_unchanged()
        return self.module(*args, **kwargs)

    def _check_unchanged(self) -> None:
        """Raise if the step that begins would compute wrong gradients."""
        if self._arrived:
            raise RuntimeError("finish_gradient_synchronization() was not called after the last backward pass")
        self._check_in_use()
        self._check_registered()
        # `module.to()` moves all parameters alike.
        dtypes, device = [parameter.dtype for parameter in self._trainable], self._trainable[0].device
        if dtypes != self._dtypes or device != self._device_of_first:
            kinds = [*zip(self._names, self._dtypes, dtypes, strict=True)]
            name, before, now = next((kind for kind in kinds if kind[1] != kind[2]), kinds[0])
            raise RuntimeError(
                f"{name} was {before} on {self._device_of_first} when it was wrapped, and is {now} on {device}: "
                "wrap it again"
            )
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise RuntimeError(f"{name} was frozen when it was wrapped, and requires a gradient: wrap it again")

    def _check_registered(self) -> None:
        """Raise if the module has a trainable parameter that it did not have when it was wrapped."""
        if torch.compiler.is_compiling() or self._registrations == registrations():
            return
        known = {*self._trainable, *(parameter for _, parameter in self._frozen)}
        added = [named for named in self.module.named_parameters() if named[1] not in known]
        for name, parameter in added:
            if parameter.requires_grad:
                raise RuntimeError(f"{name} was added or replaced after the module was wrapped: wrap it again")
        self._frozen += added
        self._registrations = registrations()

    def finish_gradient_synchronization(self) -> None:
        """Wait until all gradients are averaged; on a GPU the current stream waits, not the host.

        All ranks call it, after a step's last backward pass and before gradients are clipped or used.
        """
        self._check_in_use()
        self._check_registered()
        absent = [
            index
            for index, parameter in enumerate(self._trainable)
            if parameter.grad is None and not self._is_on_its_way(index)
        ]
        for index in absent:  # Other ranks may have a gradient, and wait for this one to take part.
            self._trainable[index].grad = torch.zeros_like(self._trainable[index])
        self._average_gradients()
        for index in absent_everywhere(absent, self._all_used, self.process_group):
            self._trainable[index].grad = None
        self._arrived.clear()

    def _gradient_arrived(self, index: int) -> None:
        """Handle a complete gradient of the parameter `index`: wrappers that overlap communication start it here."""

    def _is_on_its_way(self, index: int) -> bool:
        """Whether the gradient of the parameter `index` is being communicated, even if `grad` was replaced."""
        return False

    @abstractmethod
    def _average_gradients(self) -> None:
        """Replace all gradients, which are now complete, by their means."""


class NaiveDataParallel(DataParallel):
    """One all-reduce per parameter, after the backward pass.

    Every all-reduce has its own launch latency, and the GPUs idle while gradients are in flight.
    """

    @property
    def messages(self) -> int:
        """All-reduces of gradients in a step."""
        return len(self._trainable)

    def _average_gradients(self) -> None:
        for parameter in self._trainable:
            assert parameter.grad is not None
            average(parameter.grad, self.process_group).wait()


class FlatDataParallel(DataParallel):
    """All gradients of a dtype in one all-reduce, after the backward pass.

    Improves on naive: one launch latency, and one long message that uses the links' full bandwidth. The price is a copy
    of all gradients, and the GPUs still idle.
    """

    def __init__(self, module: nn.Module, *, process_group: dist.ProcessGroup | None = None):
        super().__init__(module, process_group=process_group)
        self._buckets = fill_buckets(self._trainable, math.inf)

    def _average_gradients(self) -> None:
        for bucket in self._buckets:
            average(bucket.gather(), self.process_group).wait()


class OverlappedDataParallel(DataParallel):
    """One all-reduce per parameter, started as soon as its gradient is ready.

    Improves on flat: communication overlaps with the backward pass of earlier layers. The price is a launch latency per
    parameter, as in naive.

    All ranks must start the same all-reduces in the same order, even if they use different parameters. So the order is
    fixed, from the last parameter to the first. If a gradient never arrives, all later ones are averaged in
    `finish_gradient_synchronization()`.
    """

    def __init__(self, module: nn.Module, *, process_group: dist.ProcessGroup | None = None):
        super().__init__(module, process_group=process_group)
        self._plan([Bucket([parameter]) for parameter in self._trainable])

    def _plan(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        # Buckets not started in this step. Setting an attribute of a module costs the host microseconds.
        self._next = deque(buckets)
        self._running: list[dist.Work] = []
        bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._bucket_of = [bucket_of[parameter] for parameter in self._trainable]

    def _gradient_arrived(self, index: int) -> None:
        bucket = self._bucket_of[index]
        bucket.awaited -= 1
        while self._next and not self._next[0].awaited:
            self._start_next()

    def _is_on_its_way(self, index: int) -> bool:
        return self._bucket_of[index].started

    def _start_next(self) -> None:
        bucket = self._next[0]
        self._send(bucket)
        bucket.started = True
        self._next.popleft()

    def _send(self, bucket: Bucket) -> None:
        """Start to average the gradients of a complete bucket."""
        self._running.append(average(bucket.gather(), self.process_group))

    def _average_gradients(self) -> None:
        while self._next:
            self._start_next()
        self._wait()
        self._next.extend(self._buckets)
        for bucket in self._buckets:
            bucket.awaited = len(bucket.parameters)
            bucket.started = False

    def _wait(self) -> None:
        for work in self._running:
            work.wait()
        self._running.clear()


class BucketedDataParallel(OverlappedDataParallel):
    """One all-reduce per bucket of gradients, started as soon as all of them are ready.

    Improves on overlapped: one launch latency per bucket, not per parameter. Large buckets start late, and nothing
    hides the last one; small buckets cost more latency.
    """

    def __init__(
        self, module: nn.Module, bucket_size_mb: float = 100, *, process_group: dist.ProcessGroup | None = None
    ):
        """Wrap a module, as `DataParallel` does.

        Args:
            module: the module to train.
            bucket_size_mb: maximum size of a bucket, in 10^6 bytes; a larger parameter has its own bucket. Each bucket
                has gradients of one dtype. Buckets are filled from the last parameter to the first.
            process_group: as in `DataParallel`.

        Raises:
            ValueError: as `DataParallel`, or a bucket size that is not positive.
            TypeError: a bucket size that is not a number.
        """
        if not isinstance(bucket_size_mb, Real):
            raise TypeError(f"bucket_size_mb is {bucket_size_mb!r}; allowed: numbers above 0")
        if not bucket_size_mb > 0:
            raise ValueError(f"bucket_size_mb is {bucket_size_mb}; allowed: numbers above 0")
        super().__init__(module, process_group=process_group)
        self._plan(fill_buckets(self._trainable, bucket_size_mb * MB))


def average(tensor: Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
    """Start to replace a gradient by its mean over the ranks of `group` (None: all); `wait` before it is used."""
    return dist.all_reduce(in_memory_order(tensor), averaging([tensor], group), group=group, async_op=True)


def in_memory_order(tensor: Tensor) -> Tensor:
    """A one-dimensional view of a gradient in memory order: NCCL accepts no transposed tensor.

    Gradients are dense, with the strides of their parameters.
    """
    return tensor.as_strided((tensor.numel(),), (1,))


def arrival_hook(this: "weakref.ref[DataParallel]", index: int) -> Callable[[Tensor], None]:
    """Make a hook that notifies the wrapper when a parameter's gradient is complete."""

    def hook(parameter: Tensor) -> None:  # A single call, since it runs for each parameter in each step.
        wrapper = this()
        if wrapper is None or wrapper._accumulating:
            return
        if index in wrapper._arrived:
            raise RuntimeError(
                f"the gradient of {wrapper._names[index]} arrived a second time: call "
                "finish_gradient_synchronization() after each backward pass, or put all but the last into no_sync()"
            )
        wrapper._arrived.add(index)
        wrapper._gradient_arrived(index)

    return hook
