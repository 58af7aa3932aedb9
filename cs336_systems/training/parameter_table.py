"""Parameters, and what the update kernel reads about them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems.training.dispatch import HAS_TRITON

if HAS_TRITON:
    from cs336_systems.training.triton_adamw import Row, UpdateTable

Groups = Sequence[Mapping[str, Any]]
"""An optimizer's param_groups."""


class ParameterTable:
    """The parameters of one dtype on one device, in the groups that they are in."""

    def __init__(self, parameters: Mapping[nn.Parameter, int], groups: Groups, states: Mapping[Any, Any]):
        """Write the table to the device; this copies from the host, so it comes before a capture.

        Args:
            parameters: each with the number of its group.
            groups: all groups.
            states: each parameter's tensors step, exp_avg, exp_avg_sq and, for bf16, remainder.
        """
        self.device = next(iter(parameters)).device
        self._number = {parameter: number for number, parameter in enumerate(parameters)}
        self._known = {p: (p.data_ptr(), group) for p, group in parameters.items()}
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        shape = len(groups), len(values(groups[0]))
        self._hyperparameters = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._uploaded: list[list[Any]] = [[None] * shape[1] for _ in groups]
        rows = []
        for parameter, group in parameters.items():
            state = states[parameter]
            moments = state["exp_avg"], state["exp_avg_sq"]
            rows.append(Row(parameter.detach(), state.get("remainder"), *moments, state["step"], group))
        self._table = UpdateTable(rows, self._hyperparameters)
        self.upload(groups)
        self._launch([None], 0, None)  # compiles and loads both kernels, and changes nothing

    def holds(self, parameters: Mapping[nn.Parameter, int]) -> bool:
        """Whether all these parameters are in the table, in these groups, at the addresses they have now."""
        return all(self._known.get(p) == (p.data_ptr(), group) for p, group in parameters.items())

    def is_stale(self) -> bool:
        """Whether a parameter has moved."""
        return any(p.data_ptr() != address for p, (address, _) in self._known.items())

    def upload(self, groups: Groups) -> None:
        """Write hyperparameters that have changed to the device, where the kernel reads them; the host never waits."""
        for number, group in enumerate(groups[: len(self._uploaded)]):
            for column, value in enumerate(values(group)):
                if isinstance(value, Tensor):
                    self._hyperparameters[number, column].copy_(value, non_blocking=True)
                elif value != self._uploaded[number][column]:
                    self._hyperparameters[number, column].fill_(value)
                    self._uploaded[number][column] = value

    def update(self, gradients: Mapping[nn.Parameter, Tensor], scale: Tensor | None) -> None:
        """Update parameters of the table by their gradients, multiplied by scale."""
        by_dtype: dict[torch.dtype, dict[int, Tensor]] = {}
        for parameter, gradient in gradients.items():
            by_dtype.setdefault(gradient.dtype, {})[self._number[parameter]] = _aligned(gradient, parameter)
        for numbered in by_dtype.values():
            first, last = min(numbered), max(numbered)
            self._launch([numbered.get(number) for number in range(first, last + 1)], first, scale)

    def _launch(self, gradients: list[Tensor | None], first: int, scale: Tensor | None) -> None:
        scale = self._one if scale is None else scale.to(self.device, torch.float32)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._table.update(gradients, scale, first)
        else:
            self._table.update(gradients, scale, first)


def values(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """A group's hyperparameters in the order in which the kernel reads them."""
    return group["lr"], *group["betas"], group["eps"], group["weight_decay"]


def _aligned(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
    """The gradient in its parameter's memory layout."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)
