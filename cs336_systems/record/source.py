"""Digests of code with everything it imports: of scripts, tests, and a user's implementations and models."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cs336_systems.folder_modules import search_path

DIGEST_CHARACTERS = 12
IMPORTS = (ast.Import, ast.ImportFrom)
LEFT_OUT = ("annotation", "returns", "type_comment", "type_params")
"""Fields of syntax trees that no measurement depends on."""


def source_digest(*modules: str) -> str:
    """Digest modules and everything they import from their own top-level packages and this one.

    Comments, docstrings, layout, `__version__` and `if __name__ == "__main__"` blocks do not affect the digest. Imports
    for type checkers count like others: they name the modules of a package that loads its names on first use.

    Args:
        modules: dotted names, resolved on `sys.path` without being imported.

    Returns:
        12 hexadecimal digits.

    Raises:
        ValueError: a module's source cannot be found, or is not Python.
    """
    packages = {_package(module) for module in [__name__, *modules]}
    folders = {package: _folders(package, ["", *sys.path]) for package in packages}
    return _digest_of(_find_sources(modules, lambda package: folders.get(package, ()), _parse))


def own_digest(path: str) -> str:
    """Digest the code of [FOLDER/]package.module:name, like `source_digest`; for a folder, with all its files.

    Raises:
        ValueError: its source cannot be found, or, without a folder, is not Python.
    """
    folder, _, module = path.partition(":")[0].rpartition("/")
    if not folder:
        return source_digest(module)
    search = search_path(Path(folder))
    return _digest_of(_find_sources([module], cache(lambda package: _folders(package, search)), _parse_or_read))


def _digest_of(sources: Mapping[str, str]) -> str:
    text = "\n".join(f"{module}\n{sources[module]}" for module in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _find_sources(
    modules: Collection[str],
    folders_of: Callable[[str], tuple[str, ...]],
    parse: Callable[[str, Path, int], tuple[str, list[str]]],
) -> dict[str, str]:
    """Collect the normalized sources of modules and everything they import, in the folders of each package."""
    sources: dict[str, str] = {}
    seen: set[str] = set()
    pending = list(modules)
    while pending:
        module = pending.pop()
        folders = folders_of(_package(module))
        if module in seen or not (folders or module in modules):
            continue
        seen.add(module)
        path = _find(module, folders)
        if path is not None:
            sources[module], imported = parse(module, path, path.stat().st_mtime_ns)
            pending += [*imported, module.rpartition(".")[0]]
        elif module in modules:
            raise ValueError(f"no source file found for module {module!r}")
    return sources


def _package(module: str) -> str:
    """The top-level package, or module, that a module belongs to."""
    return module.partition(".")[0]


def _folders(package: str, search: Sequence[str]) -> tuple[str, ...]:
    """The search folders that contain a top-level package or module: most contain none of the requested ones."""
    names = (package, f"{package}.py")
    return tuple(path for path in dict.fromkeys(search) if any(Path(path, name).exists() for name in names))


@cache
def _find(module: str, folders: tuple[str, ...]) -> Path | None:
    """Find the source file of a module, cached; None for the name of a function or class, which most names are."""
    stem = module.replace(".", "/")
    candidates = (Path(folder, stem + end) for folder in folders for end in (".py", "/__init__.py"))
    return next(filter(Path.is_file, candidates), None)


@cache  # Each run requests most files a hundred times.
def _parse(module: str, path: Path, mtime_ns: int) -> tuple[str, list[str]]:
    """A module's normalized source, and every module it may import (`from a import b` may mean a.b)."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [statement for statement in tree.body if not does_not_count(statement)]
        imported = [name for statement in _statements(tree) for name in _imported(statement, package)]
        return normalize(tree), imported
    except (SyntaxError, ValueError, ImportError) as error:
        raise ValueError(f"{path}: {error}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: an expression is nested too deeply") from None


def _parse_or_read(module: str, path: Path, mtime_ns: int) -> tuple[str, list[str]]:
    """The same, or the bytes of a file that is not Python, which fails only where it is needed."""
    try:
        return _parse(module, path, mtime_ns)
    except ValueError:
        return path.read_bytes().hex(), []


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a node at any depth, with the branches of `try` and `match`: nothing else imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


def _imported(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # Dots are relative to the package; a name without dots is unchanged.
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        return [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return []


def normalize(node: object, *, essential: bool = False) -> str:
    """Serialize a syntax tree without positions, docstrings and empty fields.

    If `essential`, also without texts, annotations and imports. Neither `ast.dump` nor `ast.unparse` works: Python
    versions print the same tree differently.
    """
    if isinstance(node, list):
        kept = (item for item in node if not (is_bare_string(item) or (essential and isinstance(item, IMPORTS))))
        return ",".join(normalize(item, essential=essential) for item in kept)
    if essential and isinstance(getattr(node, "value", ""), str) and isinstance(node, ast.Constant | ast.JoinedStr):
        return "text"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if not (essential and name in LEFT_OUT))
    present = (f"{name}={normalize(value, essential=essential)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({' '.join(present)})"


def is_bare_string(node: object) -> bool:
    """Whether a statement is only a string: a docstring, including one under a dataclass field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def does_not_count(statement: ast.stmt) -> bool:
    """Whether a statement is a version, or a main block, whose command line and printing change no result."""
    version = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__version__"
    return version or (isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__ == "))
