"""Functions that replace a module's forward method for one call, so that the module's hooks run around them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


@contextlib.contextmanager
def as_forward(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Let calls of a module run a function instead of its forward method.

    The module's hooks, such as those that gather sharded weights, run as in any other call.
    """
    replaced = module.__dict__.get("forward")
    module.forward = function
    try:
        yield
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced
