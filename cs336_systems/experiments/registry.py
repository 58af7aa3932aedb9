"""Every experiment by name, found among the modules of this package: to add one is to add its module."""

import importlib
from collections.abc import Iterator

from cs336_systems.discovery import modules
from cs336_systems.experiments.base import Experiment


def _experiments() -> Iterator[type[Experiment]]:
    for name in modules(__package__):
        if name != __name__:
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == name:
                    yield value


EXPERIMENTS: dict[str, type[Experiment]] = {kind.name: kind for kind in _experiments() if kind is not Experiment}
