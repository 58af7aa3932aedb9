"""The operators that PyTorch really runs, as its dispatcher sees them: on a CPU backward passes' too."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Operator:
    """One call of an operator."""

    name: str
    """Without its library and overload: mm, _softmax, allreduce_."""
    inputs: list[torch.Size]
    """Shapes of its tensors."""
    output: torch.Size | None
    """Shape of its first result, if that is a tensor."""
    dtype: torch.dtype | None
    """Type of the same."""


class Operators(TorchDispatchMode):
    """Notes all operators that run while it is entered, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then note it."""
        inputs = [leaf.shape for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        result = func(*args, **(kwargs or {}))
        first = next((leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)), None)
        shape, dtype = (None, None) if first is None else (first.shape, first.dtype)
        self.calls.append(Operator(func.overloadpacket.__name__, inputs, shape, dtype))
        return result

    def named(self, name: str) -> list[Operator]:
        """The calls of one operator. What an exact comparison computes in float64 is not among them."""
        return [call for call in self.calls if call.name == name and call.dtype != torch.float64]

    def last(self, name: str) -> Operator:
        """The last of them."""
        return self.named(name)[-1]
