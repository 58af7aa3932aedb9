"""Every experiment by name, discovered among the modules of this package: to add one, add its module."""

import importlib
from collections import ChainMap
from collections.abc import Iterator, Mapping

from cs336_systems.discovery import modules
from cs336_systems.experiments.base import Experiment


def _experiments() -> Iterator[type[Experiment]]:
    for name in modules(__package__):
        if name != __name__:
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == name:
                    yield value


EXPERIMENTS: dict[str, type[Experiment]] = {}
"""The experiments of the report."""
ON_REQUEST: dict[str, type[Experiment]] = {}
"""Experiments that are measured only when requested by name: they set `on_request`."""
KINDS: Mapping[str, type[Experiment]] = ChainMap(EXPERIMENTS, ON_REQUEST)
"""All of them."""
for _kind in filter(lambda kind: "name" in vars(kind), _experiments()):  # no base class
    (ON_REQUEST if getattr(_kind, "on_request", False) else EXPERIMENTS)[_kind.name] = _kind
