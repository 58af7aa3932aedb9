"""A sharded optimizer whose update, with all communication, runs while the backward pass goes on (ZeRO's stage 2).

    units = [[*model.token_embedding.parameters()], *([*block.parameters()] for block in model.blocks), ...]
    update = UpdateInBackward(units, torch.optim.AdamW, lr=1e-4)
    loss(model(inputs), targets).backward()
    update.finish()

A unit's gradients are reduce-scattered as soon as the backward pass has computed all of them; each rank then updates
its share of the unit's numbers, and an all-gather returns the new weights to all ranks. A rank keeps all weights, its
share of the optimizer's state, and gradients of a few units. (Rajbhandari et al. 2020, ZeRO.)

Unlike `ShardedOptimizer`, a unit is divided by numbers rather than by whole parameters, so that its parameters keep
their order in memory, and neighbors can be the operand of one matmul.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_systems.parallel.buckets import views_like
from cs336_systems.parallel.collectives import all_gather_single, averaging, reduce_scatter_single
from cs336_systems.parallel.communication_stream import CommunicationStream, Transfer, Waitable
from cs336_systems.parallel.limits import ALIGNMENT
from cs336_systems.parallel.ownership import aligned
from cs336_systems.parallel.replicas import check_member, check_same_on_all_ranks, describe
from cs336_systems.parallel.synchronized import check_complete_in_backward, uses_up

IN_FLIGHT = 2
"""Units whose gradients are in flight at a time."""


class Unit:
    """Parameters of one dtype, one after another in one tensor, of which each rank updates an equal share."""

    def __init__(self, parameters: Iterable[nn.Parameter], rank: int, ranks: int):
        """Move parameters into one tensor, of which their data become views.

        Raises:
            ValueError: they are of several dtypes, or on several devices.
        """
        self.parameters = list(parameters)
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "no parameters"
            raise ValueError(f"a unit has {found}; allowed: parameters of one dtype on one device")
        ((dtype, device),) = kinds
        size = sum(parameter.numel() for parameter in self.parameters)
        share = aligned(math.ceil(size / ranks), ALIGNMENT // dtype.itemsize)
        self.flat = torch.zeros(ranks * share, dtype=dtype, device=device)
        """[ranks * share]: the weights, and zeros at the end, so that all ranks have equal shares."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, views_like(self.flat, self.parameters), strict=True):
                view.copy_(parameter)
                parameter.data = view
        self.share = nn.Parameter(self.flat.narrow(0, rank * share, share))
        """[share]: the numbers that this rank updates, in the memory of `flat`."""
        self.awaited = len(self.parameters)
        """Gradients that this step's backward pass has still to compute."""

    def take_gradients(self) -> Tensor:
        """Copy the gradients into one tensor laid out like `flat`, and free them."""
        flat = torch.empty_like(self.flat)
        gradients = [parameter.grad for parameter in self.parameters]
        views = views_like(flat, self.parameters)
        torch._foreach_copy_(views, gradients)  # type: ignore[arg-type]  # all have arrived
        flat[sum(parameter.numel() for parameter in self.parameters) :].zero_()
        for parameter in self.parameters:
            parameter.grad = None
        return flat


class UpdateInBackward:
    """Reduces, updates and gathers each unit while the backward pass computes the gradients of the next ones.

    After `finish()` all ranks have the weights of the unsharded optimizer, given the mean gradients. Each backward pass
    is a step, in which every parameter needs a gradient: gradients cannot be accumulated or clipped by their norm.
    """

    def __init__(
        self,
        units: Sequence[Iterable[nn.Parameter]],
        optimizer_cls: Callable[..., Optimizer],
        *,
        process_group: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ):
        """Broadcast rank 0's weights, move them into units, and make an optimizer for each.

        Args:
            units: parameters that are reduced and updated together, in the order in which a model uses them; each
                parameter is in one of them.
            optimizer_cls: the class of an optimizer that treats every number of a parameter alike, such as AdamW.
            process_group: the ranks; None: all.
            kwargs: arguments of the optimizer.

        Raises:
            ValueError: a unit has no parameters, or of several dtypes or devices; the ranks' units differ; or a
                data-parallel wrapper averages the gradients, too.
        """
        units = [list(unit) for unit in units]
        parameters = [parameter for unit in units for parameter in unit]
        check_complete_in_backward(parameters, type(self).__name__)
        self.process_group = process_group
        self._join(units)
        self.units = [Unit(parameters, self.rank, self.ranks) for parameters in units]
        self.optimizers = [optimizer_cls([unit.share], **kwargs) for unit in self.units]
        self.enabled = True
        """Whether gradients update the weights; else they are dropped, which costs a step no more than its passes."""
        self._communication_stream = CommunicationStream(self.units[0].flat.device)
        self._running: list[Transfer] = []
        for unit in self.units:
            self._broadcast(unit.flat)
        self._register_hooks()
        uses_up(self, parameters)

    def _join(self, units: Sequence[Iterable[nn.Parameter]]) -> None:
        check_member(self.process_group)
        self.rank, self.ranks = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        named = [
            (f"parameter {index} of unit {number}", parameter)
            for number, parameters in enumerate(units)
            for index, parameter in enumerate(parameters)
        ]
        check_same_on_all_ranks([describe(*each) for each in named], self.process_group)

    def _register_hooks(self) -> None:
        this = weakref.ref(self)
        for number, unit in enumerate(self.units):
            for parameter in unit.parameters:
                handle = parameter.register_post_accumulate_grad_hook(arrival_hook(this, number))
                weakref.finalize(self, handle.remove)

    def arrive(self, number: int) -> None:
        """Count a gradient of a unit; the last one starts the unit's update.

        Raises:
            RuntimeError: the unit has been updated in this step.
        """
        unit = self.units[number]
        if not unit.awaited:
            raise RuntimeError(
                "a second backward pass computes gradients of weights that the first one has updated; allowed: one "
                "backward pass per step, then finish()"
            )
        unit.awaited -= 1
        if unit.awaited == 0:
            gradients = unit.take_gradients()
            if self.enabled:
                self.start(number, gradients)

    def start(self, number: int, gradients: Tensor) -> None:
        """Start to reduce gradients of a unit, laid out like its `flat`, and to update and gather its weights."""
        unit, optimizer = self.units[number], self.optimizers[number]
        if len(self._running) >= IN_FLIGHT:
            self._running.pop(0).wait()

        def send(asynchronous: bool) -> Waitable | None:
            unit.share.grad, work = self._reduce(gradients, asynchronous)
            return work

        def update() -> None:
            optimizer.step()
            unit.share.grad = None
            self._gather(unit)
            torch.autograd.graph.increment_version(unit.parameters)

        self._running.append(self._communication_stream.start(send, update, reads=[gradients]))

    def wait(self) -> None:
        """Wait for the updates that have started: on a GPU the current stream waits, not the host."""
        while self._running:
            self._running.pop(0).wait()

    def finish(self) -> None:
        """End a step: wait until all weights are updated.

        Raises:
            RuntimeError: the backward pass has not computed all gradients.
        """
        self.wait()
        for number, unit in enumerate(self.units):
            if unit.awaited:
                raise RuntimeError(
                    f"{unit.awaited} of the {len(unit.parameters)} gradients of unit {number} have not been computed; "
                    "allowed: backward passes that compute all gradients"
                )
        for unit in self.units:
            unit.awaited = len(unit.parameters)

    def _broadcast(self, flat: Tensor) -> None:
        dist.broadcast(flat, group=self.process_group, group_src=0)

    def _reduce(self, gradients: Tensor, asynchronous: bool) -> tuple[Tensor, Waitable | None]:
        """Start to compute this rank's share of the mean gradients."""
        share = gradients.new_empty(len(gradients) // self.ranks)
        operation = averaging([gradients], self.process_group)
        work = reduce_scatter_single(share, gradients, op=operation, group=self.process_group, async_op=asynchronous)
        return share, work

    def _gather(self, unit: Unit) -> None:
        """Send this rank's share of the weights to all ranks, and receive theirs."""
        all_gather_single(unit.flat, unit.share.detach(), group=self.process_group)


def arrival_hook(this: "weakref.ref[UpdateInBackward]", number: int) -> Callable[[Tensor], None]:
    """Make a hook that holds no reference to the optimizer, which would be a cycle."""

    def hook(_: Tensor) -> None:
        if (update := this()) is not None:
            update.arrive(number)

    return hook


class UpdateOfOneRank(UpdateInBackward):
    """The update of one rank of several without the others: its work on a device that is alone.

    It sends nothing; the rank's share follows its own gradients, and the other shares keep their weights. With one rank
    it is a whole optimizer that updates during the backward pass.
    """

    def __init__(
        self,
        units: Sequence[Iterable[nn.Parameter]],
        optimizer_cls: Callable[..., Optimizer],
        *,
        rank: int = 0,
        ranks: int = 1,
        **kwargs: Any,
    ):
        """Make rank `rank` of `ranks`; other arguments as in `UpdateInBackward`."""
        self.rank, self.ranks = rank, ranks
        super().__init__(units, optimizer_cls, **kwargs)

    def _join(self, units: Sequence[Iterable[nn.Parameter]]) -> None:
        """Nobody to join."""

    def _broadcast(self, flat: Tensor) -> None:
        """Nobody to send to."""

    def _reduce(self, gradients: Tensor, asynchronous: bool) -> tuple[Tensor, Waitable | None]:
        share = len(gradients) // self.ranks
        return gradients.narrow(0, self.rank * share, share), None

    def _gather(self, unit: Unit) -> None:
        """Nobody to receive from."""
