"""Functions that run in place of a module's forward method, so that the module's hooks run around them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


@contextlib.contextmanager
def as_forward(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Let calls of a module run a function in place of its forward method.

    Hooks of the module, such as those that gather sharded weights, act as in any other call.
    """
    own = module.__dict__.get("forward")
    module.forward = function
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
