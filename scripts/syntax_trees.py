"""Whether two versions of modules are equal but for renames, which are given and are shown to be no more than that.

With the old names in place of the new ones, the new version has to be the old one, and no two of its names may get the
same old name: not in a module, and not in all modules together if modules refer to each other by it (attributes,
arguments, definitions, imports).
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Any

from cs336_systems.record.source import is_bare_string

Known = dict[str, str]
"""New names or strings by their old ones."""


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


def require_same(old: ast.Module, new: ast.Module, packages: tuple[str, str], renames: Renames, shared: Known) -> None:
    """Compare two versions of a module, whose relative imports start from two packages.

    Args:
        old: the earlier version, which this changes.
        new: the later version, which this changes.
        packages: of both.
        renames: those from the earlier to the later version.
        shared: names by which modules refer to each other, of all modules compared so far; the new ones are added.

    Raises:
        ValueError: the versions differ by more than renames.
    """
    before, after = _OldNames(Renames(), packages[0], {}), _OldNames(renames, packages[1], shared)
    lines = (ast.unparse(version.visit(tree)).splitlines() for version, tree in ((before, old), (after, new)))
    for one, other in zip_longest(*lines, fillvalue=""):
        if one != other:
            raise ValueError(f"{one.strip()} has become, with old names, {other.strip()}")


def _add(known: Known, old: str, new: str) -> str:
    """Add a name or a string, and return the old one.

    Raises:
        ValueError: another one has the same old one.
    """
    if (other := known.setdefault(old, new)) != new:
        raise ValueError(f"{old!r} has become {other!r} and {new!r}")
    return old


class _OldNames(ast.NodeTransformer):
    """Gives a module its old names, sorts imports that follow each other by them, and drops docstrings."""

    def __init__(self, renames: Renames, package: str, shared: Known) -> None:
        self.renames, self.package, self.shared = renames, package, shared
        self.names: Known = {}
        self.strings: Known = {}

    def name(self, new: str, *, local: bool = False) -> str:
        old = _add(self.names, self.renames.names.get(new, new), new)
        return old if local else _add(self.shared, old, new)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, str):
                setattr(node, name, self.name(value, local=isinstance(node, ast.Name)))
            elif isinstance(value, list):
                setattr(node, name, self.items(value))
        return node

    def items(self, items: Iterable[Any]) -> list[Any]:
        """Statements in order and without docstrings; or the old names that `global` and `nonlocal` have."""
        named = (self.name(item, local=True) if isinstance(item, str) else item for item in items)
        kept: Iterable[Any] = (item for item in named if not is_bare_string(item))
        runs = groupby(kept, _is_import)
        return [item for imports, run in runs for item in (sorted(run, key=ast.unparse) if imports else run)]

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        return ast.Constant(_add(self.strings, self.renames.old_string(node.value), node.value))

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        return [ast.Import([ast.alias(self.renames.old_module(each.name), self.alias(each))]) for each in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.ImportFrom]:
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), self.package)
        ours = source.partition(".")[0] == self.package.partition(".")[0]
        found = []
        for each in node.names:
            if f"{source}.{each.name}" in self.renames.modules:
                module, _, name = self.renames.old_module(f"{source}.{each.name}").rpartition(".")
            else:
                module, name = self.renames.old_module(source), self.name(each.name) if ours else each.name
            found.append(ast.ImportFrom(module, [ast.alias(name, self.alias(each))], 0))
        return found

    def alias(self, imported: ast.alias) -> str | None:
        return imported.asname and self.name(imported.asname, local=True)


def _is_import(item: object) -> bool:
    return isinstance(item, ast.Import | ast.ImportFrom)
