"""Record the tensors that autograd saves for a backward pass, by operator and module, each storage once."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from cs336_systems.measure.dtypes import dtype_name

Kind = Literal["activation", "parameter", "weight copy"]
"""Kinds of saved tensors: weight copies are autocast's; buffers count as parameters."""
WEIGHT_VIEWS = {"TBackward0", "TransposeBackward0", "ViewBackward0", "ToCopyBackward0"}
"""Autograd nodes between a weight and the operand of a matmul."""


@dataclass(frozen=True)
class SavedTensor:
    """A storage, as saved by its first operator."""

    range: str
    """The innermost module that was running, by its name in the model."""
    operator: str
    """The function of PyTorch that the model called; empty for a custom autograd function, and for a checkpoint."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the tensor; its storage may be larger."""
    bytes: int
    kind: Kind


@contextlib.contextmanager
def record_saved(model: nn.Module) -> Iterator[list[SavedTensor]]:
    """Collect the tensors that forward passes inside this context save for backward, in order.

    The segments of a checkpointed model save only their inputs.
    """
    recorder = _Recorder(model)
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in recorder.follow(name, module):
                stack.callback(handle.remove)
        stack.callback(recorder.storages.clear)
        stack.enter_context(recorder)
        stack.enter_context(saved_tensors_hooks(recorder.pack, lambda tensor: tensor))
        yield recorder.saved


class _Recorder(TorchFunctionMode):
    """Tracks the running function and module for each saved tensor."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.saved: list[SavedTensor] = []
        self._parameters = {id(parameter) for parameter in model.parameters()}
        self._of_model = {address(tensor) for tensor in [*model.parameters(), *model.buffers()]}
        # Kept, so that no address is used twice; the graph, which holds this object, would keep them too long.
        self.storages: dict[int, torch.UntypedStorage] = {}
        self._modules: list[str] = [""]
        self._operator = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Only the outermost function arrives here: while it runs, the mode is off.
        self._operator = func.__name__.strip("_")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operator = ""

    def follow(self, name: str, module: nn.Module) -> Iterator[torch.utils.hooks.RemovableHandle]:
        yield module.register_forward_pre_hook(lambda *_: self._modules.append(name))
        yield module.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def _leave(self) -> None:
        self._modules.pop()

    def pack(self, tensor: Tensor) -> Tensor:
        if address(tensor) not in self.storages:
            storage = self.storages[address(tensor)] = tensor.untyped_storage()
            self.saved.append(
                SavedTensor(
                    range=self._modules[-1],
                    operator=self._operator,
                    dtype=dtype_name(tensor.dtype),
                    shape=tuple(tensor.shape),
                    bytes=storage.nbytes(),
                    kind=self._kind(tensor),
                )
            )
        return tensor

    def _kind(self, tensor: Tensor) -> Kind:
        if address(tensor) in self._of_model:
            return "parameter"
        node = tensor.grad_fn
        while node is not None and node.name() in WEIGHT_VIEWS:
            node = node.next_functions[0][0]
        return "weight copy" if id(getattr(node, "variable", None)) in self._parameters else "activation"


def address(tensor: Tensor) -> int:
    """The address at which a tensor's storage begins."""
    return tensor.untyped_storage().data_ptr()
