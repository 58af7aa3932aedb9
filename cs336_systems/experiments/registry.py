"""Every experiment by name, found among the modules of this package: to add one is to add its module."""

import importlib
import pkgutil
from collections.abc import Iterator

from cs336_systems import experiments
from cs336_systems.experiments.base import Experiment


def _experiments() -> Iterator[type[Experiment]]:
    for found in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        if found.name != __name__:
            module = importlib.import_module(found.name)
            yield from (
                value
                for value in vars(module).values()
                if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == found.name
                if value is not Experiment
            )


EXPERIMENTS: dict[str, type[Experiment]] = {experiment.name: experiment for experiment in _experiments()}
