"""Modules of a user's folder, imported under a private package.

A solution to the handout calls its package `cs336_systems`, like this project, and may have its own `cs336_basics`. Its
modules are imported below a package named by the folder and a digest, which avoids clashes, and have their own
`__import__`: `import cs336_systems.flash` imports theirs at module level, in a function and through `importlib`,
regardless of this process's modules with that name. Files and line numbers are kept.
"""

import builtins
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PROJECT = ("cs336_systems", "scripts", "tests", "examples")
"""This project's packages, which other folders' code cannot import by name."""
HANDOUTS_BASICS = "cs336_basics"
LAYERS_MODULE, LAYERS = f"{HANDOUTS_BASICS}.model", ("Linear", "Embedding")
"""The handout's module and classes of the layers that FSDP shards."""
LEAF = ("__name__",)
"""The name imported from a module to get the module itself, not its top-level package."""


class MissingPackage(ModuleNotFoundError):
    """A folder's code needs a package that is not installed."""


class Absent:
    """A stand-in for an object that could not be imported, so that only its use fails."""

    def __init__(self, error: BaseException, known: Mapping[str, Any]) -> None:
        self._error = error
        vars(self).update(known)

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        error = self._error
        if isinstance(error, MissingPackage):
            raise error.with_traceback(None)  # The place of use is more informative than the place of import.
        raise error if isinstance(error, Exception) else ImportError(f"its import raises {error!r}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    __or__ = __ror__ = __getitem__  # in annotations

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Fail, unless it decorates a function."""
        decorates = len(arguments) == 1 and not named and inspect.isroutine(arguments[0])
        return self if decorates else self._fail()

    def __instancecheck__(self, _: Any) -> bool:
        self._fail()

    __iter__ = __contains__ = _fail  # otherwise Python calls __getitem__ forever

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (type("Absent", (), {"__init__": self._fail}),)


class Source(SourceFileLoader):
    """Loads a module of a folder with its own builtins."""

    def __init__(self, name: str, path: str, modules: "FolderModules") -> None:
        super().__init__(name, path)
        self.modules = modules

    def exec_module(self, module: ModuleType) -> None:
        """Execute it; the layers of the model under test replace the handout's."""
        vars(module)["__builtins__"] = self.modules.builtins
        super().exec_module(module)
        if module.__name__ == f"{self.modules.package}.{LAYERS_MODULE}" and not self.modules.own_layers:
            vars(module).update(pytorchs_layers())


class NoDistribution(importlib.metadata.Distribution):
    """The version that the handout's packages look up without being installed."""

    def read_text(self, filename: str) -> str | None:
        """A version, and nothing else."""
        return "Metadata-Version: 2.1\nVersion: 0\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Locate a file; none exist."""
        return Path(path)


class FolderModules(MetaPathFinder):
    """Finds and imports the modules of a folder."""

    def __init__(self, folder: Path, *, own_layers: bool = False) -> None:
        """`own_layers`: whether its `cs336_basics.model` keeps its own layers; timed models use PyTorch's."""
        self.folder, self.own_layers = folder.resolve(), own_layers
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]
        self.package = f"{re.sub('[^a-zA-Z0-9]', '_', self.folder.name)}_{digest}"
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._path = tuple(sys.path)
        self._known: dict[str, bool] = {}
        """Whether imported top-level modules are the folder's: functions import them in each call."""
        self._absent: dict[str, BaseException] = {}
        """Names that could not be imported, and why."""
        self._failed: tuple[str, BaseException | None] = ("", None)
        self._depth = 0
        self._importlib = ModuleType("importlib")
        vars(self._importlib).update(import_module=self._import_module, __getattr__=partial(getattr, importlib))
        sys.modules[self.package] = ModuleType(self.package)
        sys.modules[self.package].__path__ = []
        sys.meta_path.insert(0, self)

    def load(self, name: str) -> ModuleType:
        """Import a module by its name in the folder; dependencies that cannot be imported fail where they are used."""
        if not self.has(name.partition(".")[0]):
            own = " (a module of Python's own has this name)" if name in sys.stdlib_module_names else ""
            raise ModuleNotFoundError(f"No module named {name!r} in {self.folder.name}{own}", name=name)
        module: ModuleType = self._import(name, fromlist=LEAF)
        return module

    def has(self, name: str) -> bool:
        """Whether a top-level module is the folder's: before installed ones, after Python's own."""
        spec = None if name in sys.stdlib_module_names else PathFinder.find_spec(name, self._search())
        if spec is None or spec.origin:
            return spec is not None
        # A folder without __init__.py is a package if it has modules, unlike an output folder of that name.
        folders = map(Path, spec.submodule_search_locations or ())
        return any(next(folder.glob(code), None) for folder in folders for code in ("*.py", "*/*.py"))

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Find a module below the private package."""
        package, _, rest = name.partition(".")
        if package != self.package:
            return None
        spec = PathFinder.find_spec(name, path if "." in rest else self._search())
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Source(name, spec.loader.path, self)
        return spec

    def find_distributions(self, context: Any) -> Iterator[importlib.metadata.Distribution]:
        """Find a version of the handout's packages if they are not installed."""
        installed = importlib.metadata.MetadataPathFinder.find_distributions(context)
        if str(context.name).startswith("cs336") and not any(installed):
            yield NoDistribution()

    def _search(self) -> list[str]:
        """The folders of top-level modules, including those that the code itself added to sys.path."""
        known = search_path(self.folder)
        # Other ones in the folder belong to an environment, such as the one that runs this.
        added = (path for path in sys.path if path not in self._path and Path(path).is_relative_to(self.folder))
        return [*known, *added]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        """Import like `__import__`, the folder's modules first.

        The innermost import records a failure, and the outermost retries with a stand-in for it.
        """
        if level:
            name = importlib.util.resolve_name("." * level + name, globals["__package__"])
        name = name.removeprefix(f"{self.package}.")
        while True:
            self._depth += 1
            try:
                return self._found(name, fromlist or ())
            except (Exception, SystemExit) as error:
                if error is not self._failed[1]:
                    missing = isinstance(error, MissingPackage) and error.name
                    self._failed = (missing or name, error)
                    if isinstance(error, ImportError) and error.msg:
                        error.msg = error.msg.replace(f"{self.package}.", "")
                failed = self._failed[0]
                if self._depth > 1 or f"{name}.".startswith(f"{failed}.") or failed in self._absent:
                    raise
                self._absent[failed] = error
            finally:
                self._depth -= 1

    def _import_module(self, name: str, package: str | None = None) -> Any:
        """Import like `importlib.import_module`."""
        return self._import(importlib.util.resolve_name(name, package), fromlist=LEAF)

    def _found(self, name: str, fromlist: Sequence[str]) -> Any:
        """Import a module by name, or its stand-in."""
        top = name.partition(".")[0]
        theirs = self._known[top] if top in self._known else self.has(top)
        absent = next((each for each in self._absent if f"{name}.".startswith(f"{each}.")), "")
        if absent and (fromlist or absent == top):
            return self._stand_in(absent)
        if absent:  # `import package.module`, which returns the package
            name, _, leaf = absent.rpartition(".")
            if theirs:
                setattr(self._theirs(name), leaf, self._stand_in(absent))
        module = self._theirs(name, fromlist) if theirs else self._others(name, fromlist)
        self._known[top] = theirs
        return module if fromlist or not theirs else sys.modules[f"{self.package}.{top}"]

    def _others(self, name: str, fromlist: Sequence[str]) -> ModuleType:
        """A module that belongs neither to the folder nor to this project."""
        top = name.partition(".")[0]
        if top in PROJECT:
            raise MissingPackage(f"it needs the package {top}, which is not in its folder", name=top)
        try:
            module = builtins.__import__(name, fromlist=fromlist)
        except ModuleNotFoundError as error:
            why = f"it needs the package {error.name}, which is not installed"
            raise MissingPackage(why, name=error.name) from None
        return self._importlib if module is importlib else module

    def _theirs(self, name: str, fromlist: Sequence[str] = ()) -> ModuleType:
        """A module of the folder, with the modules of the folder that are imported from it."""
        full = f"{self.package}.{name}"
        module = importlib.import_module(full)
        for each in fromlist:
            if not hasattr(module, each) and PathFinder.find_spec(f"{full}.{each}", getattr(module, "__path__", ())):
                setattr(module, each, self._import(f"{name}.{each}", fromlist=LEAF))
        return module

    def _stand_in(self, absent: str) -> Absent:
        return Absent(self._absent[absent], pytorchs_layers() if absent == HANDOUTS_BASICS else {})


def search_path(folder: Path) -> list[str]:
    """The locations of a folder's top-level modules: the folder, next to its `cs336_basics`, and `src`."""
    basics = sorted(folder.glob(f"*/{HANDOUTS_BASICS}/__init__.py"))
    return [str(folder), *(str(file.parents[1]) for file in basics), str(folder / "src")]


def pytorchs_layers() -> dict[str, Any]:
    """PyTorch's layers under the handout's names."""
    return {name: getattr(importlib.import_module("torch.nn"), name) for name in LAYERS}


@cache
def modules_of(folder: str) -> FolderModules:
    """The modules of a folder, imported once per process."""
    return FolderModules(Path(folder))
