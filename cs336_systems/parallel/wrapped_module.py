"""The base class of the wrappers whose ranks average gradients after the last backward pass of a step."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


class WrappedModule(nn.Module):
    """A module with its public attributes, and the accumulation of its gradients."""

    _arrived: Any = False
    """Whether gradients wait for `finish_gradient_synchronization`."""
    _retired_by = ""
    """The class of the wrapper that now averages the gradients, if the module was wrapped again."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module: nn.Module = module
        self._accumulating = False

    def __getattr__(self, name: str) -> Any:
        """Return a public attribute of the wrapped module that the wrapper does not have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "module":
                raise
        return self._attribute(name)

    def _attribute(self, name: str) -> Any:
        return getattr(self.module, name)

    def retire(self, by: str) -> None:
        """Stop averaging gradients, since a wrapper of another class or object does; later use raises an error."""
        self._retired_by = by

    def _check_in_use(self) -> None:
        if self._retired_by:
            raise RuntimeError(
                f"the module of this {type(self).__name__} was wrapped again, by a {self._retired_by}; allowed: only "
                "the last wrapper of a module"
            )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients: put all backward passes of a step except the last into this context.

        Data-parallel wrappers do not communicate in it. `FullyShardedDataParallel` reduces gradients of sharded weights
        nevertheless, and accumulates them in the shards' dtype: unsharded gradients of all weights would need as much
        memory as sharding saves.
        """
        if self._arrived:
            raise RuntimeError("no_sync() begins between a backward pass and finish_gradient_synchronization()")
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before
