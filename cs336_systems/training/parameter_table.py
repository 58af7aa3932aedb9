"""Parameters, and the data that the update kernel reads about them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cs336_systems.parallel.distributed_parameters import own_part
from cs336_systems.training.dispatch import HAS_TRITON

if HAS_TRITON:
    from cs336_systems.training.triton_adamw import Row, UpdateTable

Groups = Sequence[Mapping[str, Any]]

Kind = tuple[torch.device, torch.dtype]


class ParameterTable:
    """The parameters of one dtype on one device, with their groups; for DTensors, this rank's parts."""

    def __init__(self, parameters: Mapping[nn.Parameter, int], groups: Groups, states: Mapping[Any, Any]):
        """Write a table of parameters, each with the number of its group, to the device, before any capture.

        A state has step, exp_avg, exp_avg_sq and, for bf16, remainder, in its parameter's memory layout.
        """
        self.device = next(iter(parameters)).device
        self._numbered = dict(zip(parameters, enumerate(parameters.values()), strict=True))
        self._places = [_place(p, states[p]) for p in parameters]
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        shape = len(groups), len(values(groups[0]))
        self._hyperparameters = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._uploaded: list[list[Any]] = [[None] * shape[1] for _ in groups]
        # A CUDA graph may write into this memory after the optimizer has dropped it.
        self._kept = [dict(states[p]) for p in parameters]
        self._table = UpdateTable([_row(p, group, states[p]) for p, group in parameters.items()], self._hyperparameters)
        self.upload(groups)
        self._launch([None], 0, None)  # compiles and loads both kernels without changing anything

    def holds(self, parameters: Iterable[tuple[nn.Parameter, int]], states: Mapping[Any, Any]) -> bool:
        """Whether the table has these parameters in these groups, at the current addresses of them and their states."""
        numbered, places = self._numbered, self._places
        for parameter, group in parameters:
            number, current_group = numbered.get(parameter, (0, None))
            if group != current_group or places[number] != _place(parameter, states.get(parameter, {})):
                return False
        return True

    def is_current(self, states: Mapping[Any, Any]) -> bool:
        """Whether all parameters and their states still have the same addresses."""
        return self.holds([(parameter, group) for parameter, (_, group) in self._numbered.items()], states)

    def upload(self, groups: Groups) -> None:
        """Write hyperparameters that have changed to the device, where the kernel reads them; the host never waits."""
        for number, group in enumerate(groups[: len(self._uploaded)]):
            for column, value in enumerate(values(group)):
                if isinstance(value, Tensor):
                    self._hyperparameters[number, column].copy_(value, non_blocking=True)
                elif value != self._uploaded[number][column]:
                    self._hyperparameters[number, column].fill_(value)
                    self._uploaded[number][column] = value

    def update(self, gradients: Iterable[tuple[nn.Parameter, Tensor]], scale: Tensor | float | None) -> None:
        """Update parameters of the table by their gradients, multiplied by scale."""
        by_dtype: dict[torch.dtype, dict[int, Tensor]] = {}
        for parameter, gradient in gradients:
            number, _ = self._numbered[parameter]
            by_dtype.setdefault(gradient.dtype, {})[number] = _aligned(own_part(gradient), own_part(parameter))
        for numbered in by_dtype.values():
            first, last = min(numbered), max(numbered)
            self._launch([numbered.get(number) for number in range(first, last + 1)], first, scale)

    def _launch(self, gradients: list[Tensor | None], first: int, scale: Tensor | float | None) -> None:
        if scale is None:
            scale = self._one
        elif isinstance(scale, Tensor):
            scale = scale.to(self.device, torch.float32)
        else:
            scale = torch.full((), scale, device=self.device)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._table.update(gradients, scale, first)
        else:
            self._table.update(gradients, scale, first)


def values(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """A group's hyperparameters in the order in which the kernel reads them."""
    return group["lr"], *group["betas"], group["eps"], group["weight_decay"]


def _place(parameter: nn.Parameter, state: Mapping[str, Any]) -> list[Any]:
    """The addresses of a parameter and its state, and the parameter's dtype and layout."""
    weight: Tensor = parameter
    tensors: Iterable[Any] = state.values()
    if isinstance(parameter, DTensor):
        weight, tensors = own_part(parameter), [own_part(x) for x in tensors]
    place = [weight.data_ptr(), weight.dtype, weight.shape, weight.stride()]
    for tensor in tensors:
        place.append(tensor.data_ptr() if isinstance(tensor, Tensor) else None)  # None: it was replaced by a number
    return place


def _row(parameter: nn.Parameter, group: int, state: Mapping[str, Tensor]) -> "Row":
    parts = {name: own_part(value) for name, value in state.items()}
    weight = own_part(parameter.detach())
    return Row(weight, parts.get("remainder"), parts["exp_avg"], parts["exp_avg_sq"], parts["step"], group)


def _aligned(gradient: Tensor, weight: Tensor) -> Tensor:
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight, dtype=gradient.dtype, requires_grad=False).copy_(gradient)
