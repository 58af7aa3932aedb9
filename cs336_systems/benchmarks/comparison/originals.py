"""The measuring functions and classes as they were before any code under test was imported."""

import contextlib
import functools
import gc
import importlib
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.benchmarks.comparison.agreement import first_of_all_ranks
from cs336_systems.benchmarks.comparison.refusal import refuse
from cs336_systems.measure.memory import Unavailable

MODULES = (
    *(gc, secrets, statistics, time, torch.autograd, torch.cuda, torch.optim, dist, dist.distributed_c10d),
    *(nn.functional, *((importlib.import_module("triton.testing"),) if find_spec("triton") else ())),
)
"""Modules whose functions and classes measure or compare."""
FUNCTIONS = ("allclose", "cat", "clone", "equal", "isclose", "stack", "Generator", "Tensor")
"""Functions and classes of `torch` that measure or compare. PyTorch's compiler replaces others when it is imported."""
CLASSES = {"torch.Tensor": torch.Tensor, "torch.cuda.Event": torch.cuda.Event, "torch.cuda.Stream": torch.cuda.Stream}
"""Classes whose methods measure or compare, by name."""
OURS = ("cs336_systems.benchmarks.comparison.", "cs336_systems.measure.", "cs336_systems.training_step")
"""This project's modules, by the beginnings of their names."""
SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
}
"""PyTorch settings that change a step's results or speed, and how to read and write each."""


@functools.cache
def originals() -> list[tuple[str, Any, str, Any]]:
    """List path, owner, name and value of everything that code under test must not change, as of the first call."""
    ours = [module for name, module in sys.modules.items() if name.startswith(OURS)]
    owners = {module.__name__: module for module in (*MODULES, *ours)} | CLASSES
    return [
        (f"{path}.{name}", owner, name, value)
        for path, owner in owners.items()
        for name, value in ((name, getattr(owner, name, None)) for name in dir(owner))
        if callable(value) and (path in CLASSES or not name.startswith("_"))
    ] + [(f"torch.{name}", torch, name, getattr(torch, name)) for name in FUNCTIONS]


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Enclose code under test, which may be unavailable on all ranks; restore what it replaces, and refuse it then."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        yield
    except Unavailable:
        _require_left_alone(before)
        raise
    _require_left_alone(before)


def _require_left_alone(before: Mapping[str, Any]) -> None:
    faults = [*restore(), *_changed(before)]
    if why := first_of_all_ranks(next(iter(faults), "")):
        refuse(why, foreign=True)


def restore() -> list[str]:
    """Restore replaced functions and classes; return their names."""
    return [*_replaced()]


def _replaced() -> Iterator[str]:
    for path, owner, name, value in originals():
        now = getattr(owner, name, None)
        if now is not value and now != value:
            setattr(owner, name, value)
            yield f"it has replaced {path}"


def _changed(before: Mapping[str, Any]) -> Iterator[str]:
    for name, (read, write) in SETTINGS.items():
        if (now := read()) != before[name]:
            write(before[name])
            yield f"it has changed {name} from {before[name]} to {now}"
