"""Whether two versions of modules are equal but for renames, which are given and are shown to be no more than that.

A name that has become another one has become it throughout its module, and no two names have become one. The names by
which modules refer to each other (attributes, arguments, definitions, imports) keep to that in all modules together.
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cs336_systems.record.source import is_bare_string


@dataclass(frozen=True)
class Renames:
    """Old names by new ones."""

    modules: Mapping[str, str] = field(default_factory=dict)
    """Dotted names of modules, and of packages with all that is in them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Identifiers, also as whole words of strings."""
    strings: Mapping[str, str] = field(default_factory=dict)
    """Words of strings."""

    def old_module(self, new: str) -> str:
        """The old name of a module, or of a name in it."""
        head, _, tail = new.rpartition(".")
        return self.modules.get(new) or (f"{self.old_module(head)}.{tail}" if head else new)

    def old_string(self, new: str) -> str:
        """A string with all old names."""
        return self._words.sub(lambda found: self._all[found[0]], new)

    @cached_property
    def _all(self) -> dict[str, str]:
        return {**self.names, **self.strings, **self.modules}

    @cached_property
    def _words(self) -> re.Pattern[str]:
        longest_first = sorted(self._all, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)" if longest_first else r"(?!)")


class Pairs:
    """Old and new names, one to one."""

    def __init__(self) -> None:
        self._new: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def add(self, old: str, new: str) -> None:
        """Add a pair.

        Raises:
            ValueError: one of the two is already part of another pair.
        """
        if (known := self._new.setdefault(old, new)) != new:
            raise ValueError(f"{old!r} has become {known!r} and {new!r}")
        if (known := self._old.setdefault(new, old)) != old:
            raise ValueError(f"{known!r} and {old!r} have become {new!r}")


class Comparison:
    """A comparison of modules, one after another, that refer to each other."""

    def __init__(self, renames: Renames) -> None:
        self._renames = renames
        self._shared = Pairs()

    def require_same(self, old: ast.Module, new: ast.Module, old_package: str, new_package: str) -> None:
        """Compare two versions of a module, each with the package that its relative imports start from.

        Raises:
            ValueError: they differ by more than renames.
        """
        _Module(self._renames, self._shared, (old_package, new_package)).compare(old, new)


class _Module:
    """The comparison of one module."""

    def __init__(self, renames: Renames, shared: Pairs, packages: tuple[str, str]) -> None:
        self.renames, self.shared, self.packages = renames, shared, packages
        self.names, self.strings = Pairs(), Pairs()

    def compare(self, old: object, new: object) -> None:
        if isinstance(old, list) and isinstance(new, list):
            self.compare_lists(old, new)
        elif isinstance(old, ast.Constant) and isinstance(new, ast.Constant):
            if isinstance(old.value, str) and isinstance(new.value, str):
                self.compare_strings(old.value, new.value)
            else:
                require(repr(old.value) == repr(new.value), old, new)
        elif isinstance(old, ast.Import | ast.ImportFrom) and isinstance(new, ast.Import | ast.ImportFrom):
            self.compare_imports([old], [new])
        elif isinstance(old, ast.AST) and isinstance(new, ast.AST):
            require(type(old) is type(new), old, new)
            for name in old._fields:
                one, other = getattr(old, name, None), getattr(new, name, None)
                if isinstance(one, str) and isinstance(other, str):
                    self.compare_names(one, other, local=isinstance(old, ast.Name))
                else:
                    self.compare(one, other)
        elif isinstance(old, str) and isinstance(new, str):  # of `global` and `nonlocal`
            self.compare_names(old, new, local=True)
        else:
            require(repr(old) == repr(new), old, new)

    def compare_lists(self, old: Sequence[object], new: Sequence[object]) -> None:
        """Compare lists; imports that follow each other are in the order of their names."""
        runs = [list(_runs(item for item in version if not is_bare_string(item))) for version in (old, new)]
        require(len(runs[0]) == len(runs[1]), old, new)
        for one, other in zip(*runs, strict=True):
            if isinstance(one, list) and isinstance(other, list):
                self.compare_imports(one, other)
            else:
                self.compare(one, other)

    def compare_imports(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> None:
        before = sorted(_imported(old, self.packages[0]), key=repr)
        after = [(*self._old_import(found), found) for found in _imported(new, self.packages[1])]
        after.sort(key=lambda found: repr(found[:3]))
        require(len(before) == len(after), old, new)
        for (module, name, alias), (old_module, old_name, old_alias, found) in zip(before, after, strict=True):
            require((module, name) == (old_module, old_name) and bool(alias) == bool(old_alias), old, new)
            if name and found[0] + "." + found[1] not in self.renames.modules:
                self.compare_names(name, found[1])
            if alias:
                self.compare_names(alias, found[2], local=True)

    def _old_import(self, found: tuple[str, str, str]) -> tuple[str, str, str]:
        """The old names of what is imported: module, name in it and alias."""
        module, name, alias = found
        if name and f"{module}.{name}" in self.renames.modules:
            old, _, old_name = self.renames.old_module(f"{module}.{name}").rpartition(".")
            return old, old_name, alias
        is_ours = module.partition(".")[0] == self.packages[1].partition(".")[0]
        return self.renames.old_module(module), self.renames.names.get(name, name) if is_ours else name, alias

    def compare_names(self, old: str, new: str, *, local: bool = False) -> None:
        require(old == new or self.renames.names.get(new) == old, old, new)
        self.names.add(old, new)
        if not local:
            self.shared.add(old, new)

    def compare_strings(self, old: str, new: str) -> None:
        require(old == new or self.renames.old_string(new) == old, old, new)
        self.strings.add(old, new)


def _runs(items: Iterable[object]) -> Iterable[object]:
    """Items, of which imports that follow each other are one list."""
    run: list[ast.stmt] = []
    for item in items:
        if isinstance(item, ast.Import | ast.ImportFrom):
            run.append(item)
            continue
        if run:
            yield run
            run = []
        yield item
    if run:
        yield run


def _imported(statements: Sequence[ast.stmt], package: str) -> Iterable[tuple[str, str, str]]:
    """The module, the name in it (or nothing) and the alias (or nothing) of all that statements import."""
    for statement in statements:
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                yield alias.name, "", alias.asname or ""
            else:
                module = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
                yield module, alias.name, alias.asname or ""


def require(same: bool, old: object, new: object) -> None:
    """Raise a ValueError that shows both versions."""
    if not same:
        raise ValueError(f"{_shown(old)} has become {_shown(new)}")


def _shown(version: object) -> str:
    if isinstance(version, list):
        return f"[{', '.join(map(_shown, version))}]"[:200]
    return (ast.unparse(version) if isinstance(version, ast.AST) else repr(version))[:200]
