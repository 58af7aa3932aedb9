"""What all experiments' parameters share: validation, documentation and expansion of grids into cells."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from annotated_types import Ge
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from cs336_systems.sizes import parse_size

Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]


def _known_size(size: str) -> str:
    parse_size(size)
    return size


Size = Annotated[str, AfterValidator(_known_size)]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The parameters of one cell. A subclass is an experiment; each field has a docstring, which is its help text."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    name: ClassVar[str]
    """The experiment's name: its module's in `experiments` and `benchmarks`, its folder's in `results`."""


E = TypeVar("E", bound="Experiment")


def make_cell(experiment: type[E], parameters: Mapping[str, Any]) -> E:
    """A validated cell.

    Raises:
        ValueError: an unknown parameter or a value that is not allowed, in one sentence.
    """
    try:
        return TypeAdapter(experiment).validate_python(dict(parameters))
    except ValidationError as error:
        known = ", ".join(field.name for field in dataclasses.fields(experiment))
        raise ValueError(explain(error, known)) from None


def expand(experiment: type[E], grid: Mapping[str, Sequence[Any]]) -> list[E]:
    """Every combination of a grid's values, the last parameter varying fastest."""
    return [make_cell(experiment, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def explain(error: Exception, known: str = "") -> str:
    """The first complaint of a validation error as one sentence: the key, the value, what is allowed."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key!r} is not known here" + (f"; allowed: {known}" if known else "")
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{key} is missing"
    return f"{key} is {first['input']!r}; allowed: {first['msg'].removeprefix('Input should be ')}"


def field_docs(owner: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, its base classes' too."""
    docs: dict[str, str] = {}
    for cls in reversed(owner.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        for field, doc in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                docs[field.target.id] = inspect.cleandoc(doc.value.value)
    return docs
