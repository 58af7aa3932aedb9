"""Discovery of experiments, figures and checks among the modules of their package."""

import importlib
import pkgutil


def modules(package: str) -> list[str]:
    """List the dotted names of a package's modules and sub-packages, in alphabetical order, without importing them."""
    folders = importlib.import_module(package).__path__
    return [f"{package}.{module.name}" for module in pkgutil.iter_modules(folders)]
