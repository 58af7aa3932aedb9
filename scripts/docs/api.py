"""Signatures and docstrings in Markdown, from the source only: no module is imported, as many need PyTorch.

A page has lines `<!-- api package.name -->`, or `<!-- api package.name: method, method -->` for some of a class's
methods; the part up to `<!-- end of api -->` is generated here.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

PLACE = re.compile(r"(?<=<!-- api )(?P<name>[\w.]+)(?P<methods>: [\w, ]+)? -->\n.*?(?=<!-- end of api -->)", re.DOTALL)
SECTION = re.compile(r"(Args|Raises|Returns|Yields):")
Definition = ast.FunctionDef | ast.ClassDef


def page(text: str) -> str:
    """The text of a page, with current signatures and docstrings.

    Raises:
        ValueError: it has no place for them, or names what does not exist.
    """
    text, places = PLACE.subn(_entry, text)
    if not places:
        raise ValueError("the page has no line '<!-- api NAME -->'")
    return text


def _entry(match: re.Match[str]) -> str:
    """A class or function with its signature; a class also with the requested methods."""
    name = match["name"]
    definition, source = find(name)
    methods = [method.strip() for method in (match["methods"] or ":").removeprefix(":").split(",") if method.strip()]
    parts = [f"### `{name.rpartition('.')[2]}`", f"`{name}`", *described(definition, source)]
    if isinstance(definition, ast.ClassDef):
        of_class = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        for method in methods:
            parts += described(of_class[method], source)
    return f"{name}{match['methods'] or ''} -->\n\n" + "\n\n".join(parts) + "\n\n"


def find(name: str) -> tuple[Definition, str]:
    """The definition of a dotted name, and its source: its module or the module from which its package imports it.

    Raises:
        ValueError: there is none.
    """
    module, _, last = name.rpartition(".")
    folder = Path(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    own = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == last]
    if own:
        return own[-1], source  # after its overloads
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and last in [alias.name for alias in node.names]:
            return find(f"{node.module}.{last}")
    raise ValueError(f"{name} is documented, but not defined in {path}")


def described(definition: Definition, source: str) -> Iterator[str]:
    """The signature of a class, function or method, and its docstring; for a class also of its `__init__`."""
    call = definition
    if isinstance(definition, ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        call = methods.get("__init__", definition)
    yield f"```py\n{signature(definition.name, call, source)}\n```"
    yield from documented(definition)
    if call is not definition:
        yield from documented(call)


def signature(name: str, call: Definition, source: str) -> str:
    """A call as its definition spells it, without `self`."""
    if isinstance(call, ast.ClassDef):
        return name
    lines = source.splitlines()[call.lineno - 1 : call.body[0].lineno - 1]
    text = textwrap.dedent(re.sub("  #.*", "", "\n".join(lines))).removeprefix(f"def {call.name}").removesuffix(":")
    return name + re.sub(r"(?<=\()(\s*)self(,\s*|(?=\)))", r"\1", text)


def documented(definition: Definition) -> Iterator[str]:
    """The parts of a docstring: unchanged paragraphs, and lists of its named entries."""
    docstring = ast.get_docstring(definition) or ""
    for part in re.split(r"\n\n+", docstring):
        first, *lines = part.splitlines() or [""]
        if SECTION.fullmatch(first):
            yield f"{first.removesuffix(':')}:"
            yield _listed(lines)
        elif part:
            yield part


def _listed(lines: list[str]) -> str:
    """The entries of a section, each beginning with its name; or its text, if it has no names."""
    indented = [line[4:] for line in lines]
    if not re.match(r"[\w*., ]+:", indented[0]):
        return "\n".join(indented)
    entries = "\n".join(indented)
    return re.sub(r"^(?! )([\w*.]+)(?=:)", r"- `\1`", entries, flags=re.MULTILINE).replace("\n    ", "\n  ")
