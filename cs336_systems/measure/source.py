"""A digest of the code an experiment runs, so that a change re-measures what it touches and nothing else."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

DIGEST_CHARACTERS = 12


def source_digest(*modules: str, without: Collection[str] = ()) -> str:
    """A digest of the modules and of all they import from their own top-level packages and this one.

    Comments, docstrings, layout and what a module does only when run as a program do not affect it.

    Args:
        modules: dotted names, resolved on `sys.path` without being imported.
        without: modules left out, with what is imported only by them.

    Returns:
        12 hexadecimal digits.

    Raises:
        ValueError: a module's source cannot be found, or is not Python.
    """
    packages = {module.partition(".")[0] for module in [__name__, *modules]}
    sources: dict[str, str] = {}
    seen = set(without)
    pending = list(modules)
    while pending:
        module = pending.pop()
        if module in seen or module.partition(".")[0] not in packages:
            continue
        seen.add(module)
        path = _find(module)
        if path is not None:
            sources[module], imported = _parse(module, path, path.stat().st_mtime_ns)
            pending += [*imported, module.rpartition(".")[0]]
        elif module in modules:
            raise ValueError(f"no source file found for module {module!r}")
    text = "\n".join(f"{module}\n{sources[module]}" for module in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _find(module: str) -> Path | None:
    relative = Path(*module.split("."))
    for root in dict.fromkeys(["", *sys.path]):
        for candidate in (Path(root, relative).with_suffix(".py"), Path(root, relative, "__init__.py")):
            if candidate.is_file():
                return candidate
    return None


@cache
def _parse(module: str, path: Path, mtime_ns: int) -> tuple[str, list[str]]:
    """The normalized source of a module, and every module name it may import (`from a import b` may mean a.b)."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [statement for statement in tree.body if not _is_main_block(statement)]
        imported = [name for node in ast.walk(tree) for name in _imported(node, package)]
    except (SyntaxError, ImportError) as error:
        raise ValueError(f"{path}: {error}") from None
    return _normalize(tree), imported


def _imported(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # Dots are relative to the package; a name without them stays as it is.
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        return [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return []


def _normalize(node: object) -> str:
    """A tree as text, without positions, docstrings and empty fields.

    Neither `ast.dump` nor `ast.unparse` would do: Python versions differ in what they print for the same tree.
    """
    if isinstance(node, list):
        return ",".join(_normalize(item) for item in node if not _is_bare_string(item))
    if not isinstance(node, ast.AST):
        return repr(node)
    present = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return f"{type(node).__name__}({' '.join(f'{name}={_normalize(value)}' for name, value in present)})"


def _is_bare_string(node: object) -> bool:
    """Whether a statement is only a string: a docstring, including one under a dataclass field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_main_block(statement: ast.stmt) -> bool:
    """Whether a statement is what a module does as a program: its command line and its printing measure nothing."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    return isinstance(statement.test.left, ast.Name) and statement.test.left.id == "__name__"
