"""What autograd saves for a backward pass: which operator of which module saves what, each storage counted once."""

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
"""What a saved tensor is: weight copies are those that autocast makes; buffers count as parameters."""
WEIGHT_VIEWS = {"TBackward0", "TransposeBackward0", "ViewBackward0", "ToCopyBackward0"}
"""What lies between a weight and the operand of a product."""


@dataclass(frozen=True)
class SavedTensor:
    """A storage, as its first operator saved it."""

    range: str
    """The innermost module that was running, by its name in the model."""
    operator: str
    """The function of PyTorch that the model called; empty for a custom autograd function, and for a checkpoint."""
    dtype: str
    """As PyTorch names it."""
    shape: tuple[int, ...]
    """Of the tensor; a storage may be larger."""
    bytes: int
    """Of the storage."""
    kind: Kind
    """What it is."""


@contextlib.contextmanager
def record_saved(model: nn.Module) -> Iterator[list[SavedTensor]]:
    """Collect what forward passes inside this context save for backward, in the order of saving.

    The segments of a checkpointed model save their inputs only.
    """
    recorder = _Recorder(model)
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in recorder.follow(name, module):
                stack.callback(handle.remove)
        stack.callback(recorder.forget)
        stack.enter_context(recorder)
        stack.enter_context(saved_tensors_hooks(recorder.pack, lambda tensor: tensor))
        yield recorder.found


class _Recorder(TorchFunctionMode):
    """Knows the function and the module that are running whenever a tensor is saved."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.found: list[SavedTensor] = []
        self._parameters = {id(parameter) for parameter in model.parameters()}
        self._of_model = {address(tensor) for tensor in [*model.parameters(), *model.buffers()]}
        # Kept, so that no address is used twice; the graph, which holds this object, would keep them too long.
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._modules: list[str] = [""]
        self._operator = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Only the outermost function comes here: while it runs, the mode is off.
        self._operator = func.__name__.strip("_")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operator = ""

    def follow(self, name: str, module: nn.Module) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Hooks that say when a module runs."""
        yield module.register_forward_pre_hook(lambda *_: self._modules.append(name))
        yield module.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def _leave(self) -> None:
        self._modules.pop()

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is being saved."""
        if address(tensor) not in self._storages:
            storage = self._storages[address(tensor)] = tensor.untyped_storage()
            self.found.append(
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

    def forget(self) -> None:
        """Let go of the storages."""
        self._storages.clear()

    def _kind(self, tensor: Tensor) -> Kind:
        if address(tensor) in self._of_model:
            return "parameter"
        node = tensor.grad_fn
        while node is not None and node.name() in WEIGHT_VIEWS:
            node = node.next_functions[0][0]
        return "weight copy" if id(getattr(node, "variable", None)) in self._parameters else "activation"


def address(tensor: Tensor) -> int:
    """Where a tensor's storage begins."""
    return tensor.untyped_storage().data_ptr()
