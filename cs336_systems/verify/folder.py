"""A folder that somebody has handed over: the implementations that it names, and a copy in which they run."""

import ast
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cs336_systems.implementations import FAMILIES, Implementation, parse
from cs336_systems.yaml_file import read_mapping

NAMES, ADAPTERS = Path("implementations.yaml"), Path("tests/adapters.py")
ADAPTERS_OF = {
    "get_flashattention_autograd_function_pytorch": ("attention", "pytorch"),
    "get_flashattention_autograd_function_triton": ("attention", "triton"),
    "get_ddp_individual_parameters": ("data_parallel", "individual"),
    "get_ddp": ("data_parallel", "ddp"),
    "get_ddp_bucketed": ("data_parallel", "bucketed"),
    "get_sharded_optimizer": ("sharded_optimizer", "optimizer"),
    "get_fsdp": ("fsdp", "fsdp"),
}
"""The adapters of both editions of the handout that make an implementation: its family, and what to call it."""
NOT_COPIED = (".*", "__pycache__", "node_modules", "venv", "wandb", "results", "data")
LARGEST_MB = 100

Named = list[tuple[str, Implementation]]
"""Families and implementations."""


def handed_over(folder: Path) -> Path | None:
    """The file that says which implementations a folder has: its implementations.yaml, else its adapters."""
    return next((file for name in (NAMES, ADAPTERS) if (file := folder / name).is_file()), None)


def folder_of(file: Path) -> Path:
    """The folder of a file that `handed_over` finds."""
    return file.absolute().parents[1] if file.name == ADAPTERS.name else file.absolute().parent


def implementations_in(file: Path) -> Named:
    """The implementations that a file names, adapters or YAML.

    Raises:
        ValueError: it is a link, cannot be read, or names something else, in one sentence.
    """
    if file.is_symlink() or file.parent.is_symlink():
        raise ValueError(f"{file.name} is a symbolic link; allowed: a file")
    return in_adapters(file) if file.name == ADAPTERS.name else read_implementations(read_mapping(file), file.name)


def in_adapters(file: Path) -> Named:
    """The implementations of a file like the handout's tests/adapters.py, which is read, not run.

    Raises:
        ValueError: it is no Python, or has no adapter.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{file.name} is no Python: {error}") from None
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= {alias.asname or alias.name for alias in imports}
    found = [
        (family, Implementation(name=name, path=f"tests.{file.stem}:{adapter}"))
        for adapter, (family, name) in ADAPTERS_OF.items()
        if adapter in names
    ]
    if not found:
        raise ValueError(f"{file.name} has no adapter; allowed: {', '.join(ADAPTERS_OF)}")
    return found


def read_implementations(content: Mapping[str, Any], source: str) -> Named:
    """The implementations that a mapping from families to names and paths names.

    Raises:
        ValueError: an unknown family, or an entry that is none, in one sentence that begins with the source.
    """
    found = []
    for family, paths in content.items():
        if family not in FAMILIES:
            raise ValueError(f"{source}: unknown key {family!r}; allowed: {', '.join(FAMILIES)}")
        if not isinstance(paths, dict):
            raise ValueError(f"{source}: {family} is {paths!r}; allowed: names with their package.module:name")
        for name, path in paths.items():
            try:
                found.append((family, parse(f"{name}={path}")))
            except ValueError as error:
                raise ValueError(f"{source}: {family}: {error}") from None
    return found


@contextmanager
def read_only_copy(folder: Path) -> Iterator[Path]:
    """A copy of a folder for its code to run in, without links and hidden files.

    Raises:
        ValueError: the folder is too large, in one sentence.
    """

    def left_out(place: str, names: list[str]) -> set[str]:
        links = {name for name in names if (Path(place) / name).is_symlink()}
        return links | shutil.ignore_patterns(*NOT_COPIED)(place, names)

    size = 0
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - left_out(place, folders)
        size += sum((Path(place) / name).lstat().st_size for name in files)
    if size > LARGEST_MB * 1e6:
        raise ValueError(f"{folder.name} has {size / 1e6:.0f} MB; allowed: at most {LARGEST_MB} MB, without links")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary).resolve() / folder.name
        shutil.copytree(folder, copy, ignore=left_out)
        for place, _, files in os.walk(copy, topdown=False):
            for name in files:
                (Path(place) / name).chmod(0o444)
            Path(place).chmod(0o555)
        try:
            yield copy
        finally:
            for place, _, _ in os.walk(copy):
                Path(place).chmod(0o755)


def commit_of(folder: Path) -> str:
    """The commit that a folder has checked out; empty if that cannot be read. No program of git's is run in it."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            ref = head.removeprefix("ref: ")
            loose = git / ref
            packed = git / "packed-refs"
            lines = [loose.read_text(encoding="utf-8")] if loose.is_file() else packed.read_text("utf-8").splitlines()
            head = next((line for line in lines if ref in line or loose.is_file()), "").split()[0]
    except (OSError, UnicodeError, IndexError):
        return ""
    return head[:10] if re.fullmatch(r"[0-9a-f]{40}", head) else ""
