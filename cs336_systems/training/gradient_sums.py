"""Sums of 16-bit gradients over micro-batches in fp32."""

from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor, nn

from cs336_systems.parallel.synchronized import check_complete_in_backward

NARROW = (torch.bfloat16, torch.float16)


class GradientSums:
    """Adds the gradients of several backward passes in fp32, where `.grad` would round each sum to 16 bits.

        with GradientSums(model.parameters()) as sums:
            for part in parts:
                (loss_of(part) / len(parts)).backward()
        optimizer.step(gradients=sums.gradients)

    The mean of the parts' means is the batch's mean only if the same number of tokens counts in each. Otherwise add up
    sums, `linear_cross_entropy(..., reduction="sum")`, each divided by the number of tokens that count in the batch.

    Each gradient is added as soon as the backward pass has computed it, and is freed: memory is 4 bytes per weight
    instead of 2, and each pass moves 10 bytes per weight instead of 6. Gradients of fp32 parameters stay in `.grad`.
    """

    def __init__(self, parameters: Iterable[Tensor]):
        """Wrap parameters; nothing is allocated before their first gradients."""
        self._parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self._narrow = [p for p in self._parameters if p.dtype in NARROW]
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.gradients: dict[nn.Parameter, Tensor] = {}
        """The sums so far, for the parameters that have gradients."""

    def __enter__(self) -> Self:
        """Start to take gradients.

        Raises:
            ValueError: a data-parallel wrapper averages a gradient later; `CapturedStep(..., model=it)` adds up then.
        """
        check_complete_in_backward(self._narrow, "GradientSums")
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _begin(self) -> None:
        self._handles = [p.register_post_accumulate_grad_hook(self._add) for p in self._narrow]

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()

    @torch.no_grad()
    def _add(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "the hook runs after accumulation"
        if parameter in self.gradients:
            self.gradients[parameter].add_(gradient)
        else:
            self.gradients[parameter] = gradient.float()


class LocalSums(GradientSums):
    """Sums of passes in a wrapper's no_sync(), from which the last pass starts, so that all are averaged."""

    def __enter__(self) -> Self:
        self._begin()
        return self

    def give(self) -> None:
        """Move the sums into `.grad`, and stop taking gradients."""
        self._end()
        for parameter, total in self.gradients.items():
            parameter.grad = total.to(parameter.dtype)
        self.gradients.clear()
