"""Modules are found by being in a package: to add an experiment, a figure or a check, add its module."""

import importlib
import pkgutil


def modules(package: str) -> list[str]:
    """The dotted name of each module and sub-package of a package, in alphabetical order, without importing it."""
    folders = importlib.import_module(package).__path__
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(folders)]
