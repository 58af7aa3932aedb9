"""The definitions that a measurement runs, found by following names, and a digest of their syntax trees.

Only the used part of a module is followed: the named definitions, those that they name in turn, and the statements that
run on import. The digest ignores text, annotations, imports and the position of definitions, so better words and moves
do not change it.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from cs336_systems.record.source import DIGEST_CHARACTERS, IMPORTS, LEFT_OUT, does_not_count, is_bare_string, normalize

PACKAGE = "cs336_systems"
ROOT = Path(__file__).parents[2]
ALL = "*"
"""Instead of a name: everything that a module defines."""
essential = cache(partial(normalize, essential=True))  # Most statements belong to several units.


class Place(NamedTuple):
    """A name in a module, or ALL."""

    module: str
    name: str


class Module(NamedTuple):
    """A module's statements."""

    name: str
    package: str
    """The package that its relative imports start from."""
    definitions: dict[str, list[ast.stmt]]
    """Statements by the names that they define."""
    effects: list[ast.stmt]
    """Statements that run when the module is imported."""
    imports: dict[str, Place]


def reach(
    roots: Collection[Place], elsewhere: Callable[[str], str] = lambda module: ""
) -> tuple[list[ast.stmt], set[str]]:
    """Follow names from some places; `elsewhere` names the owner of a module that must not be followed.

    Returns:
        the reached statements, and the names of the owners that were not followed.

    Raises:
        ValueError: a place does not exist, or the first ones are not in this package.
    """
    for place in roots:
        if place.module.partition(".")[0] != PACKAGE:
            raise ValueError(f"measured code begins in {place.module}; allowed: modules of {PACKAGE}")
    statements: dict[int, ast.stmt] = {}
    uses: set[str] = set()
    seen: set[Place] = set()
    pending = list(roots)
    while pending:
        place = pending.pop()
        if place in seen or place.module.partition(".")[0] != PACKAGE:
            continue
        seen.add(place)
        module = read_module(place.module)
        if place.name in module.imports and place.name not in module.definitions:
            pending.append(module.imports[place.name])
        elif other := elsewhere(place.module):
            uses.add(other)
        else:
            for statement in _found(module, place.name):
                if id(statement) not in statements:
                    statements[id(statement)] = statement
                    pending += _named(statement, module.name)
    return list(statements.values()), uses


def digest(statements: Collection[ast.stmt]) -> str:
    """Digest statements, independent of their order and module."""
    texts = sorted(map(essential, statements))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:DIGEST_CHARACTERS]


def modules_below(package: str) -> list[str]:
    """A module, or a package and all modules in it."""
    stem = ROOT / package.replace(".", "/")
    files = sorted(stem.rglob("*.py")) or [stem.with_suffix(".py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.stem != "__main__"]
    return [name.removesuffix(".__init__") for name in names]


@cache
def _file(module: str) -> Path | None:
    stem = ROOT / module.replace(".", "/")
    return next(filter(Path.is_file, (stem.with_suffix(".py"), stem / "__init__.py")), None)


@cache
def read_module(name: str) -> Module:
    """Read a module of the package.

    Raises:
        ValueError: there is none.
    """
    path = _file(name)
    if path is None:
        raise ValueError(f"there is no module {name!r}")
    module = Module(name, name if path.name == "__init__.py" else name.rpartition(".")[0], {}, [], {})
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if is_bare_string(statement) or does_not_count(statement) or _is_for_type_checkers(statement):
            continue
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names = [statement.name]
        else:
            nodes = list(ast.walk(statement))
            module.imports.update(pair for node in nodes for pair in _imported(node, module.package))
            names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        for name in names:
            module.definitions.setdefault(name, []).append(statement)
        if not names and not isinstance(statement, IMPORTS):
            module.effects.append(statement)
    return module


def _is_for_type_checkers(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _found(module: Module, name: str) -> Iterator[ast.stmt]:
    """The statements that a name of a module refers to, with those that run on import."""
    if name != ALL and name not in module.definitions:
        raise ValueError(f"{module.name} has no {name!r}")
    yield from module.effects
    for statements in module.definitions.values() if name == ALL else [module.definitions[name]]:
        yield from statements


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, Place]]:
    """The names that an import defines, and what they refer to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name, Place(alias.name, ALL)
    elif isinstance(node, ast.ImportFrom):
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            module = f"{source}.{alias.name}"
            place = Place(module, ALL) if _file(module) else Place(source, alias.name)
            yield alias.asname or alias.name, place


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A syntax tree's nodes, except those that no measurement depends on."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in LEFT_OUT:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


@cache
def _named(statement: ast.stmt, name: str) -> tuple[Place, ...]:
    """The places that a statement of a module names."""
    module, nodes = read_module(name), list(_nodes(statement))
    known = {**module.imports, **dict(pair for node in nodes for pair in _imported(node, module.package))}
    names = {node.id: None for node in nodes if isinstance(node, ast.Name)}  # in their order
    own = {defined: Place(name, defined) for defined in module.definitions}
    return tuple(place for each in names if (place := own.get(each) or known.get(each)))
