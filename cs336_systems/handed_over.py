"""A user's folder: the implementations that it names. No torch here; none of its code is run."""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from cs336_systems.implementations import ADAPTERS_OF, FAMILIES, FOLDER, Implementation, parse
from cs336_systems.yaml_file import read_mapping

NAMES, ADAPTERS = Path("implementations.yaml"), Path("tests/adapters.py")

Named = list[tuple[str, Implementation]]
"""Families and implementations."""


def handed_over(folder: Path) -> Path | None:
    """The file that lists a folder's implementations: its implementations.yaml, else its adapters."""
    files = [folder / NAMES, folder / ADAPTERS]
    return next(filter(isfile, files), None)  # Path.is_file raises an error for a path that is too long


def folder_of(file: Path) -> Path:
    """The folder of a file returned by `handed_over`."""
    return file.absolute().parents[1] if file.name == ADAPTERS.name else file.absolute().parent


def named_by(folder: str) -> Named:
    """The implementations of a folder, each with the folder in its path, as in rows and command lines.

    Raises:
        ValueError: it names none, or has a path that is not allowed there, in one sentence.
    """
    file = handed_over(Path(folder))
    if file is None:
        raise ValueError(f"{folder!r}; allowed: none, or a folder with a {ADAPTERS}")
    if not re.fullmatch(FOLDER, folder):
        raise ValueError(f"{folder!r}; allowed: a path without spaces, commas, = and :")
    try:
        named = implementations_in(file)
    except ValueError as error:
        raise ValueError(f"{folder!r}: {error}") from None
    return [(family, replace(own, path=f"{Path(folder)}/{own.path}")) for family, own in named]


def implementations_in(file: Path) -> Named:
    """The implementations that a file names, adapters or YAML.

    Raises:
        ValueError: it is a link, does not exist, cannot be read, or has other content, in one sentence.
    """
    if not file.exists():
        raise ValueError(f"there is neither an {NAMES} nor a {ADAPTERS}")
    if file.is_symlink() or file.parent.is_symlink():
        raise ValueError(f"{file.name} is a symbolic link; allowed: a file")
    if file.name == ADAPTERS.name:
        return in_adapters(file)
    named = read_implementations(read_mapping(file), file.name)
    if outside := next((own.path for _, own in named if own.folder), ""):
        raise ValueError(f"{file.name} names {outside!r}; allowed: package.module:name in its folder")
    return named


def in_adapters(file: Path) -> Named:
    """The implementations of a file like the handout's tests/adapters.py, which is read, not run.

    Raises:
        ValueError: it is not Python, or has no adapter.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{file.name} is not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{file.name} is not Python: an expression is nested too deeply") from None
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= {alias.asname or alias.name for alias in imports}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    named = [
        (family, Implementation(name=name, path=f"tests.{file.stem}:{adapter}"))
        for adapter, (family, name) in ADAPTERS_OF.items()
        if adapter in names
    ]
    if not named:
        raise ValueError(f"{file.name} has no adapter; allowed: {', '.join(ADAPTERS_OF)}")
    return named


def read_implementations(content: Mapping[str, Any], source: str) -> Named:
    """The implementations that a mapping from families to names and paths names.

    Raises:
        ValueError: an unknown family, or an invalid entry, in one sentence that begins with the source.
    """
    named = []
    for family, paths in content.items():
        if family not in FAMILIES:
            raise ValueError(f"{source}: unknown key {family!r}; allowed: {', '.join(FAMILIES)}")
        if not isinstance(paths, dict):
            raise ValueError(f"{source}: {family} is {paths!r}; allowed: names with their package.module:name")
        for name, path in paths.items():
            try:
                named.append((family, parse(f"{name}={path}")))
            except ValueError as error:
                raise ValueError(f"{source}: {family}: {error}") from None
    return named
