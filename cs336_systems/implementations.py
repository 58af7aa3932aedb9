"""A user's implementations, named in the configuration or on a command line as NAME=package.module:name.

Each is an additional contender in its family's experiment. NAME=FOLDER/package.module:name is an implementation in
another folder, whose packages may have the same names as this project's. No torch here: only the named modules may
import it.

Launch: python -m cs336_systems.implementations FAMILY NAME=package.module:name [FAMILY NAME=package.module:name ...]

It exits with status 2 and one sentence if one cannot be loaded, or does not accept its family's arguments.
"""

import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cs336_systems.folder_modules import modules_of

FAMILIES = {
    "attention": "flash",
    "data_parallel": "data_parallel",
    "sharded_optimizer": "optimizer_sharding",
    "fsdp": "fsdp",
}
"""Families of own implementations, and the experiment of each."""
CALLED_WITH = {
    "attention": ("q", "k", "v", "is_causal"),
    "data_parallel": ("module",),
    "sharded_optimizer": ("params", "optimizer_cls"),
    "fsdp": ("module", "compute_dtype"),
}
"""Positional arguments with which each family is called."""
ADAPTERS_OF = {
    "get_flashattention_autograd_function_pytorch": ("attention", "adapter-pytorch"),
    "get_flashattention_autograd_function_triton": ("attention", "adapter-triton"),
    "get_ddp_individual_parameters": ("data_parallel", "adapter-individual"),
    "get_ddp": ("data_parallel", "adapter-ddp"),
    "get_ddp_bucketed": ("data_parallel", "adapter-bucketed"),
    "get_sharded_optimizer": ("sharded_optimizer", "adapter-optimizer"),
    "get_fsdp": ("fsdp", "adapter-fsdp"),
}
"""The adapters of both editions of the handout that provide an implementation: its family, and its name in rows."""
BUCKET_SIZE = "bucket_size_mb"
"""The optional argument of wrappers with a bucket size."""
PARAMETER = "implementation"
"""The experiments' parameter that names own implementations."""
WHO = ("wrapper", "contender")
"""Details that name a row's contender, in experiments whose cells have several."""
SHAPE = "NAME=package.module:name, its name of letters, digits, underscores and hyphens"
FOLDER = r"[^\s,=:]+"
"""A folder's path in rows and on command lines, where spaces, commas, = and : are separators."""
LONGEST_NAME, LONGEST_PATH = 30, 200
LOADED = "all loaded\n"
"""Printed last by the check, to detect a module that ends its process with status 0."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A user's own implementation."""

    name: str
    """Its name in rows, tables and figures."""
    path: str
    """Its location, as package.module:name."""

    @property
    def text(self) -> str:
        """Name and path, in the form of the command line."""
        return f"{self.name}={self.path}"

    @property
    def folder(self) -> str:
        """The folder of its module; empty if it is imported like any other."""
        return self.path.partition(":")[0].rpartition("/")[0]

    @property
    def module(self) -> str:
        """Its module."""
        return self.path.partition(":")[0].rpartition("/")[2]

    @property
    def adapter(self) -> bool:
        """Whether it is an adapter of the handout, which its tests call."""
        return self.path.rpartition(":")[2] in ADAPTERS_OF


def parse(text: str) -> Implementation:
    """Parse NAME=package.module:name.

    Raises:
        ValueError: the text has another form, or is too long, in one sentence.
    """
    if len(text) > LONGEST_NAME + LONGEST_PATH:
        raise ValueError(
            f"{PARAMETER} is {text[:40]!r}..., of {len(text)} characters; allowed: {SHAPE}, up to {LONGEST_PATH}"
        )
    name = rf"[A-Za-z][\w-]{{0,{LONGEST_NAME - 1}}}"
    if not re.fullmatch(rf"{name}=(?u:{FOLDER}/)?[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text, re.ASCII):
        raise ValueError(f"{PARAMETER} is {text!r}; allowed: {SHAPE}")
    name, _, path = text.partition("=")
    return Implementation(name=name, path=path)


def parse_all(text: str) -> tuple[Implementation, ...]:
    """Parse implementations separated by commas; none if the text is empty.

    Raises:
        ValueError: one has another form, or two share a name, in one sentence.
    """
    implementations = tuple(map(parse, text.split(","))) if text else ()
    names = [implementation.name for implementation in implementations]
    if len(set(names)) < len(names):
        raise ValueError(f"{PARAMETER} is {text!r}, where a name occurs twice; allowed: each name once")
    return implementations


def own_implementations(cell: Any) -> tuple[Implementation, ...]:
    """The user's implementations in a cell of any experiment, or in a row of a table."""
    text = getattr(cell, PARAMETER, "")
    return parse_all(text) if "=" in text else ()


def family_of(experiment: str) -> str:
    """The family of an experiment's user implementations; empty if it has none."""
    return next((family for family, its_experiment in FAMILIES.items() if its_experiment == experiment), "")


def label(text: str) -> str:
    """Label of an implementation that has no entry in a registry: its name, without its path."""
    return text.partition("=")[0]


def load_module(path: str) -> ModuleType:
    """Import the module in [FOLDER/]package.module:name."""
    folder, _, module = path.rpartition(":")[0].rpartition("/")
    return modules_of(folder).load(module) if folder else importlib.import_module(module)


def load_path(path: str) -> Any:
    """Import the object that [FOLDER/]package.module:name names; the name may have dots.

    Raises:
        ValueError: no such object exists.
    """
    value, module, name = load_module(path), path.rpartition(":")[0].rpartition("/")[2], path.rpartition(":")[2]
    for part in name.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{module} has no {name!r}")
        value = getattr(value, part)
    return value


def check(family: str, implementation: Implementation) -> None:
    """Check that an implementation can be loaded, and accepts its family's arguments.

    Raises:
        ValueError: it cannot, or does not, in one sentence.
    """
    try:
        value = load_path(implementation.path)
    except BaseException as error:  # whatever a user's module raises
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}".removesuffix(": ")
        raise ValueError(f"{implementation.text} cannot be loaded: {reason.splitlines()[0][:300]}") from None
    arguments = CALLED_WITH[family]
    allowed = f"allowed: a callable with the arguments {', '.join(arguments)}"
    if not callable(value):
        raise ValueError(f"{implementation.text} is of type {type(value).__name__}; {allowed}")
    if implementation.adapter:
        return  # Whether it is implemented shows when it is called.
    # PyTorch's own `apply` accepts anything; the function it calls has the context as first argument.
    call = getattr(value, "forward", value) if family == "attention" and isinstance(value, type) else value
    context = (None,) if call is not value else ()
    try:
        signature = inspect.signature(call)
        sized = {BUCKET_SIZE: 100} if family == "data_parallel" and BUCKET_SIZE in signature.parameters else {}
        signature.bind(*context, *arguments, **sized)
    except TypeError as error:
        raise ValueError(f"{implementation.text} cannot be called: {error}; {allowed}") from None
    except ValueError:
        return  # Python knows no signature of it, as for some C functions.


if __name__ == "__main__":
    for family, text in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        try:
            check(family, parse(text))
        except ValueError as error:
            print(f"implementations.{family}: {error}", file=sys.stderr)
            sys.exit(2)
    print(LOADED, end="")
