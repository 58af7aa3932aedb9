"""Calls of a user's implementations: like the adapters in the handout's tests, or through a class's own methods.

No torch here.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cs336_systems.implementations import ADAPTERS_OF, BUCKET_SIZE, load_module, load_path

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]
"""Called with a model and its optimizer."""
GATHERS = ("gather_full_parameters", "gather_full_params", "fsdp_gather_full_params", "get_full_params_state_dict")
"""Names of methods, or of functions in an FSDP class's module, that gather unsharded weights."""


class Wrapped(NamedTuple):
    """A wrapped model, and the functions called with it in a step."""

    model: "nn.Module"
    before: Hook | None
    """Before the forward pass."""
    after: Hook | None
    """After the backward pass."""
    gather: "Callable[[], Mapping[str, Tensor]] | None"
    """Gathers its unsharded weights by name."""


def by_methods(wrapped: "nn.Module", module: ModuleType | None = None) -> Wrapped:
    """Look up a wrapped model's methods, or a module's functions, by purpose."""
    gather = next((getattr(wrapped, name) for name in GATHERS if hasattr(wrapped, name)), None)
    function = next((getattr(module, name) for name in GATHERS if hasattr(module, name)), None)
    return Wrapped(
        wrapped,
        _method(wrapped, "on_train_batch_start"),
        _method(wrapped, "finish_gradient_synchronization"),
        gather or (function and (lambda: function(wrapped))),
    )


def _method(wrapped: "nn.Module", name: str) -> Hook | None:
    method = getattr(wrapped, name, None)
    return method and (lambda model, optimizer: method())


def by_end(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Look up names that are suffixes of the given ones, the shortest of several: "weight" matches "module.weight"."""
    keys = {name: [key for key in given if f".{key}".endswith(f".{name}")] for name in names}
    return {name: given[min(matches, key=len)] for name, matches in keys.items() if matches}


class Adapters:
    """An implementation named as [FOLDER/]package.module:name: an adapter, a class or a function."""

    def __init__(self, path: str, load: Callable[[str], Any] = load_path) -> None:
        self.path, self.load, self.name = path, load, path.rpartition(":")[2]
        self.adapter = self.name in ADAPTERS_OF

    def attention(self) -> Callable[..., Any]:
        """Make a function of (q, k, v, is_causal)."""
        function = self.load(self.path)
        function = function() if self.adapter else function
        return self._checked(
            getattr(function, "apply", function) if self.adapter or isinstance(function, type) else function,
            "__call__",
            "a function of q, k, v and is_causal, or an autograd.Function",
        )

    def data_parallel(self, module: "nn.Module", bucket_mb: float) -> Wrapped:
        """Wrap a module, in buckets of a size if it has any."""
        wrap = self.load(self.path)
        if self.adapter:
            return self._with_adapters(wrap(module, bucket_mb) if self.name == "get_ddp_bucketed" else wrap(module))
        sized = BUCKET_SIZE in inspect.signature(wrap).parameters
        return by_methods(self._model(wrap(module, **({BUCKET_SIZE: bucket_mb} if sized else {}))))

    def sharded_optimizer(self, parameters: Any, optimizer: type, **options: Any) -> "torch.optim.Optimizer":
        """Make a sharded optimizer."""
        sharded: torch.optim.Optimizer = self.load(self.path)(parameters, optimizer, **options)
        return self._checked(sharded, "step", "an optimizer")

    def fsdp(self, module: "nn.Module", compute_dtype: "torch.dtype | None") -> Wrapped:
        """Wrap a module whose weights are sharded.

        Raises:
            NotImplementedError: it accepts no compute_dtype, but one is requested.
        """
        wrap = self.load(self.path)
        if compute_dtype is not None and "compute_dtype" not in inspect.signature(wrap).parameters:
            raise NotImplementedError("it does not accept compute_dtype")
        wrapped = wrap(module, **({} if compute_dtype is None else {"compute_dtype": compute_dtype}))
        if self.adapter:
            return self._with_adapters(wrapped)
        return by_methods(self._model(wrapped), load_module(self.path))

    def _with_adapters(self, model: "nn.Module") -> Wrapped:
        """Look up the adapters that are called with a wrapped model."""
        module = load_module(self.path)
        before, after, gather = (
            getattr(module, f"{self.name.removeprefix('get_')}_{end}", None)
            for end in ("on_train_batch_start", "on_after_backward", "gather_full_params")
        )
        return Wrapped(self._model(model), before, after, gather and (lambda: gather(model)))

    def _model(self, wrapped: "nn.Module") -> "nn.Module":
        return self._checked(wrapped, "named_parameters", "a module")

    def _checked(self, value: T, method: str, allowed: str) -> T:
        """A value that the implementation is or returned; a TypeError if it is of another kind."""
        if isinstance(value, type) or not hasattr(value, method):
            kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise TypeError(f"{self.name} gives {kind}; allowed: {allowed}")
        return value
