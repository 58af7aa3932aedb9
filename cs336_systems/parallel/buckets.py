"""Buckets: gradients that one collective sends, contiguous in one tensor."""

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

MB = 10**6


class Bucket:
    """The gradients of some parameters of one dtype, as one tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter]):
        """Make a bucket for the gradients of `parameters`; a single parameter's gradient stays where it is."""
        self.parameters = parameters
        self.awaited = len(parameters)  # gradients still to come in this step
        self.started = False  # whether their communication has started in this step

    @cached_property
    def _flat(self) -> Tensor:
        """The bucket's contiguous memory, allocated on first use: a bucket that is never gathered needs none."""
        size = sum(parameter.numel() for parameter in self.parameters)
        return torch.empty(size, dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    @cached_property
    def _views(self) -> list[Tensor]:
        return views_like(self._flat, self.parameters)

    def gather(self) -> Tensor:
        """Copy the gradients into one tensor and make them views of it; each parameter must have a gradient."""
        gradients = [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]
        assert len(gradients) == len(self.parameters), "a parameter without a gradient"
        if len(gradients) == 1:
            return gradients[0]
        # If zero_grad keeps gradients, they are views already, and the backward pass has added to them in place.
        outside = [
            i for i, (gradient, view) in enumerate(zip(gradients, self._views, strict=True)) if gradient is not view
        ]
        if outside:
            torch._foreach_copy_([self._views[i] for i in outside], [gradients[i] for i in outside])
        for i in outside:
            self.parameters[i].grad = self._views[i]
        return self._flat


def fill_buckets(parameters: Sequence[nn.Parameter], max_bytes: float) -> list[Bucket]:
    """Buckets of at most `max_bytes`, in the order in which they are complete; a larger parameter has its own."""
    return [Bucket([parameters[i] for i in group]) for group in group_tensors(parameters, max_bytes)]


def group_tensors(tensors: Iterable[Tensor], max_bytes: float) -> list[list[int]]:
    """Tensors, by their indices, in groups of one dtype and of at most `max_bytes` each; a larger one is alone.

    Consecutive tensors share a group if possible. Groups are in the order of their last members.
    """
    return group_sizes([(tensor.dtype, tensor.nbytes) for tensor in tensors], max_bytes)


def group_sizes(members: Iterable[tuple[torch.dtype | None, int]], max_bytes: float) -> list[list[int]]:
    """Dtypes and bytes, by their indices, in groups as of `group_tensors`."""
    groups: list[list[int]] = []
    open_groups: dict[torch.dtype | None, tuple[list[int], int]] = {}  # the last group of each dtype, and its bytes
    for index, (dtype, size) in enumerate(members):
        group, total = open_groups.get(dtype, ([], 0))
        if not group or total + size > max_bytes:
            group, total = [], 0
            groups.append(group)
        group.append(index)
        open_groups[dtype] = (group, total + size)
    return sorted(groups, key=lambda group: group[-1])


def views_like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive parts of a one-dimensional tensor, each with the shape and strides of one of `tensors`."""
    sizes = [tensor.numel() for tensor in tensors]
    begins = itertools.accumulate(sizes, initial=0)
    return [dense_view(flat, begin, tensor) for begin, tensor in zip(begins, tensors, strict=False)]


def dense_view(flat: Tensor, begin: int, like: Tensor) -> Tensor:
    """Part of a one-dimensional tensor, in the shape and (if they leave no gaps) the strides of another tensor.

    Fused optimizers process a parameter, its gradient and its state in memory order.
    """
    strides = torch.empty_like(like, device="meta").stride()
    return flat.as_strided(like.shape, strides, flat.storage_offset() + begin)
