"""A sharded optimizer that updates and communicates during the backward pass (ZeRO stage 2).

    update = UpdateInBackward(units_of(model), torch.optim.AdamW, lr=1e-4)
    loss(model(inputs), targets).backward()
    update.finish()

A unit's gradients are reduce-scattered as soon as all of them are ready; each rank then updates its share of the unit's
elements, and an all-gather returns the new weights to all ranks. A rank keeps all weights, its share of the optimizer
state, and the gradients of a few units. (Rajbhandari et al. 2020, ZeRO.)

Unlike in `ShardedOptimizer`, a unit is divided by elements, not by whole parameters, so that its parameters keep their
order in memory and neighbours can be the operand of one matmul.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import LBFGS, Adafactor, Optimizer, SparseAdam

from cs336_systems.limits import ALIGNMENT
from cs336_systems.parallel.buckets import views_like
from cs336_systems.parallel.collectives import all_gather_single, averaging, reduce_scatter_single
from cs336_systems.parallel.communication_stream import CommunicationStream, Transfer, Waitable
from cs336_systems.parallel.ownership import aligned, check_separate
from cs336_systems.parallel.replicas import check_in_memory, check_member, check_same_on_all_ranks, describe
from cs336_systems.parallel.synchronized import check_complete_in_backward, uses_up

IN_FLIGHT = 2

NOT_ELEMENTWISE: tuple[type[Optimizer], ...] = (
    LBFGS,
    Adafactor,
    SparseAdam,
    *([torch.optim.Muon] if hasattr(torch.optim, "Muon") else []),
)
"""Optimizers whose update of an element depends on other elements, or on sparse gradients."""


class Unit:
    """Parameters of one dtype, contiguous in one tensor; each rank updates an equal share."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, ranks: int):
        """Move parameters of one dtype and device into one tensor, and make them views of it."""
        self.parameters = parameters
        dtype, device = self.parameters[0].dtype, self.parameters[0].device
        size = sum(parameter.numel() for parameter in self.parameters)
        share = aligned(math.ceil(size / ranks), ALIGNMENT // dtype.itemsize)
        self.flat = torch.zeros(ranks * share, dtype=dtype, device=device)
        """[ranks * share]: the weights, and zeros at the end, so that all ranks have equal shares."""
        self._views = views_like(self.flat, self.parameters)
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self._views, strict=True):
                view.copy_(parameter)
                parameter.data = view
        self.share = nn.Parameter(self.flat.narrow(0, rank * share, share))
        """[share]: the elements that this rank updates, in the memory of `flat`."""
        self.awaited = len(self.parameters)
        """Gradients that this step's backward pass still has to compute."""

    def check_in_place(self) -> None:
        """Raise a RuntimeError if a parameter is no longer a view of `flat`, which is updated."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr() or parameter.dtype is not view.dtype:
                raise RuntimeError(
                    f"a parameter of shape {list(parameter.shape)} was cast, moved or replaced after its unit was "
                    "created; allowed: in-place changes, by load_state_dict or under torch.no_grad()"
                )

    def cut(self, values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """This rank's share of one tensor per parameter, [share] in the given dtype."""
        flat = torch.zeros_like(self.flat, dtype=dtype)
        for view, value in zip(views_like(flat, self.parameters), values, strict=True):
            view.copy_(value)
        return flat.narrow(0, self.share.storage_offset(), len(self.share)).clone()

    def take_gradients(self) -> Tensor:
        """Copy the gradients into one tensor laid out like `flat`, and free them."""
        self.check_in_place()
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

    After `finish()` all ranks have the weights that the unsharded optimizer computes from the mean gradients. Each
    backward pass is a step and must compute every parameter's gradient. Gradients cannot be accumulated or clipped by
    their norm, since they are consumed before all of them exist.
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
            units: parameters that are reduced and updated together, in the order in which a model uses them, such as
                `units_of(model)`; each parameter is in one of them.
            optimizer_cls: the class of an elementwise optimizer, such as AdamW.
            process_group: the ranks that share the parameters; None: all.
            kwargs: arguments of the optimizer.

        Raises:
            ValueError: a unit has no parameters, or mixes dtypes or devices; a parameter is frozen, in two places,
                on the meta device or a DTensor; the ranks' units differ; a data-parallel wrapper also averages the
                gradients; or the optimizer computes with whole matrices, or with all parameters at once.
        """
        members = [list(unit) for unit in units]
        parameters = [parameter for unit in members for parameter in unit]
        check_units(members)
        check_complete_in_backward(parameters, type(self).__name__)
        check_elementwise(optimizer_cls)
        self.process_group = process_group
        self._join(members)
        self.units = [Unit(unit, self.rank, self.ranks) for unit in members]
        self.optimizers = [optimizer_cls([unit.share], **kwargs) for unit in self.units]
        for optimizer in self.optimizers:
            # A MasterAdamW allocates its state on the current stream, before gradients need memory.
            getattr(optimizer, "prepare", lambda: None)()
        self.enabled = True
        """Whether gradients update the weights; otherwise they are dropped, at no cost beyond the passes."""
        self._communication_stream = CommunicationStream(self.units[0].flat.device)
        self._running: list[Transfer] = []
        for unit in self.units:
            self._broadcast(unit.flat)
        self._register_hooks()
        uses_up(self, parameters)

    def _join(self, units: Sequence[Sequence[nn.Parameter]]) -> None:
        check_member(self.process_group)
        self.rank, self.ranks = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        check_same_on_all_ranks([describe(*each) for each in named_in(units)], self.process_group)

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

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group per unit, whose parameter is this rank's share; hyperparameters may be changed between steps."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Drop the gradients of a failed backward pass, so that the next one begins a step.

        Units that the pass updated before it failed stay updated: on all ranks, if it failed on all of them.
        """
        self.wait()
        for unit in self.units:
            unit.awaited = len(unit.parameters)
            for parameter in unit.parameters:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters in the host's memory, numbered in the order of the units.

        All ranks call this. The result has the unsharded optimizer's format, and loads into that optimizer and onto
        any number of ranks. Weights are not part of it: save the model's `state_dict` next to it.
        """
        states: list[dict[str, Any]] = []
        for unit, optimizer in zip(self.units, self.optimizers, strict=True):
            of_unit: list[dict[str, Any]] = [{} for _ in unit.parameters]
            for name, value in optimizer.state[unit.share].items():
                for state, part in zip(of_unit, self._parts(unit, value), strict=True):
                    state[name] = part
            states += of_unit
        group = {**self.optimizers[0].param_groups[0], "params": list(range(len(states)))}
        return {"state": {n: state for n, state in enumerate(states) if state}, "param_groups": [group]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict` from any number of ranks, or the unsharded optimizer's state.

        Raises:
            ValueError: it has several groups, or other parameters; nothing is loaded.
        """
        group, states = check_loadable(state_dict, [unit.parameters for unit in self.units])
        for unit, optimizer, of_unit in zip(self.units, self.optimizers, states, strict=True):
            state = {
                name: unit.cut([s[name] for s in of_unit], value.dtype) if is_elementwise(name, value, unit) else value
                for name, value in of_unit[0].items()
            }
            optimizer.load_state_dict(
                {"state": {0: state} if state else {}, "param_groups": [{**group, "params": [0]}]}
            )

    def _parts(self, unit: Unit, value: Any) -> list[Any]:
        """Each parameter's value in a unit, on the host, from this rank's share of it or from a common value."""
        if not isinstance(value, Tensor):
            return [value] * len(unit.parameters)
        if value.shape != unit.share.shape:
            return [value.detach().to("cpu", copy=True) for _ in unit.parameters]
        flat = self._whole(value.detach()).cpu()
        return [view.clone() for view in views_like(flat, unit.parameters)]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; allowed: its state_dict()")

    def _whole(self, share: Tensor) -> Tensor:
        """Gather the shares of all ranks, as bytes since not every backend sends 16-bit integers."""
        whole = share.new_empty(self.ranks * len(share))
        all_gather_single(whole.view(torch.uint8), share.view(torch.uint8), group=self.process_group)
        return whole

    def _broadcast(self, flat: Tensor) -> None:
        dist.broadcast(flat, group=self.process_group, group_src=0)

    def _reduce(self, gradients: Tensor, asynchronous: bool) -> tuple[Tensor, Waitable | None]:
        share = gradients.new_empty(len(gradients) // self.ranks)
        operation = averaging([gradients], self.process_group)
        work = reduce_scatter_single(share, gradients, op=operation, group=self.process_group, async_op=asynchronous)
        return share, work

    def _gather(self, unit: Unit) -> None:
        all_gather_single(unit.flat, unit.share.detach(), group=self.process_group)


def units_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Divide a model's parameters into units: one per block, and one for the parameters between two blocks.

    A block is a module in a ModuleList or Sequential. Lists within a block are part of the block. A parameter that
    several modules share appears several times.
    """
    units: list[list[nn.Parameter]] = [[]]

    def visit(module: nn.Module) -> None:
        units[-1].extend(parameter for parameter in module._parameters.values() if parameter is not None)
        for child in module.children():
            if isinstance(module, nn.ModuleList | nn.Sequential):
                units.extend(([*child.parameters()], []))
            else:
                visit(child)

    visit(model)
    return [unit for unit in units if unit]


def named_in(units: Sequence[Sequence[nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """All parameters, by their places."""
    return [
        (f"parameter {index} of unit {number}", parameter)
        for number, parameters in enumerate(units)
        for index, parameter in enumerate(parameters)
    ]


def check_units(units: Sequence[Sequence[nn.Parameter]]) -> None:
    """Raise a ValueError if a unit cannot be moved into one tensor, or a parameter will not get just one gradient."""
    for parameters in units:
        kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in parameters}
        if len(kinds) != 1:
            given = ", ".join(sorted(kinds)) or "no parameters"
            raise ValueError(f"a unit has {given}; allowed: parameters of one dtype on one device")
    named = named_in(units)
    for name, parameter in named:
        if not parameter.requires_grad:
            raise ValueError(f"{name} is frozen; allowed: parameters that require a gradient")
    check_in_memory(named)
    check_separate(named)


def check_elementwise(optimizer_cls: Any) -> None:
    """Raise a ValueError if an optimizer's update of an element depends on other elements."""
    if isinstance(optimizer_cls, type) and issubclass(optimizer_cls, NOT_ELEMENTWISE):
        name = optimizer_cls.__name__
        raise ValueError(f"optimizer_cls is {name}; allowed: elementwise optimizers, such as AdamW")


def is_elementwise(name: str, value: Any, unit: Unit) -> bool:
    """Whether an entry of the first parameter's state has as many elements as the parameter."""
    return name != "step" and isinstance(value, Tensor) and value.shape == unit.parameters[0].shape


def check_loadable(
    state_dict: Mapping[str, Any], units: Sequence[Sequence[nn.Parameter]]
) -> tuple[Mapping[str, Any], list[list[Mapping[str, Any]]]]:
    """Return the group of a state dict, and the states of each unit's parameters; a ValueError if they do not fit."""
    groups, total = state_dict["param_groups"], sum(map(len, units))
    if (sizes := [len(group["params"]) for group in groups]) != [total]:
        raise ValueError(f"the state has groups of {sizes} parameters; allowed: [{total}], one group of all parameters")
    numbers = iter(groups[0]["params"])
    states = [[state_dict["state"].get(next(numbers), {}) for _ in parameters] for parameters in units]
    for parameters, of_unit in zip(units, states, strict=True):
        for parameter, state in zip(parameters, of_unit, strict=True):
            if state.keys() != of_unit[0].keys():
                raise ValueError("parameters of a unit have states of different entries; allowed: the same entries")
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                    shapes = f"{list(value.shape)}; allowed: its parameter's, {list(parameter.shape)}"
                    raise ValueError(f"{name} is of shape {shapes}")
    return groups[0], states


def arrival_hook(this: "weakref.ref[UpdateInBackward]", number: int) -> Callable[[Tensor], None]:
    """Make a hook without a reference to the optimizer, which would create a cycle."""

    def hook(_: Tensor) -> None:
        if (update := this()) is not None:
            update.arrive(number)

    return hook


class UpdateOfOneRank(UpdateInBackward):
    """The update of one rank of several without the others, to run one rank's work on a single device.

    It sends nothing; the rank's share follows its own gradients, and the other shares keep their weights. With one
    rank, it is a complete optimizer that updates during the backward pass.
    """

    def __init__(
        self,
        units: Sequence[Iterable[nn.Parameter]],
        optimizer_cls: Callable[..., Optimizer],
        *,
        ranks: int = 1,
        **kwargs: Any,
    ):
        """Make rank 0 of `ranks`; other arguments as in `UpdateInBackward`."""
        self.rank, self.ranks = 0, ranks
        super().__init__(units, optimizer_cls, **kwargs)

    def _join(self, units: Sequence[Sequence[nn.Parameter]]) -> None:
        """Nobody to join."""

    def _broadcast(self, flat: Tensor) -> None:
        """Nobody to send to."""

    def _reduce(self, gradients: Tensor, asynchronous: bool) -> tuple[Tensor, Waitable | None]:
        return gradients[: len(gradients) // self.ranks], None

    def _gather(self, unit: Unit) -> None:
        """Nobody to receive from."""

    def _whole(self, share: Tensor) -> Tensor:
        if self.ranks > 1:
            raise NotImplementedError(f"an update of one rank of {self.ranks} has no state to save; allowed: ranks=1")
        return share
