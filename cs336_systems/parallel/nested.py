"""Tensors nested in arguments and results: in containers, and in the fields of dataclasses."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


def map_tensors(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Apply a function to each tensor in nested values."""

    def replace(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            replaced = copy.copy(value)
            for field in dataclasses.fields(value):
                if hasattr(value, field.name):
                    # A frozen dataclass can only be set this way.
                    object.__setattr__(replaced, field.name, map_tensors(function, getattr(value, field.name)))
            return replaced
        return value

    return tree_map(replace, values)


def tensors_with_gradient(values: Any) -> list[Tensor]:
    """The tensors in nested values that require a gradient."""
    tensors = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            tensors.append(tensor)
        return tensor

    map_tensors(note, values)
    return tensors
