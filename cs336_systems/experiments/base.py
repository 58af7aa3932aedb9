"""Base class of all experiments: validation, documentation and expansion of grids into cells."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.metrics import METRICS
from cs336_systems.sizes import parse_size

Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]


def _known_size(size: str) -> str:
    parse_size(size)
    return size


def _class_path(model: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", model):
        raise ValueError(f"model is {model!r}; allowed: a model class as package.module:Class")
    return model


Size = Annotated[str, AfterValidator(_known_size)]
ModelClass = Annotated[str, AfterValidator(_class_path)]


@dataclass(frozen=True, kw_only=True)
class Experiment(metaclass=type):  # noqa: UP050 (mypy takes no other class for hashable, python/mypy#20409)
    """Parameters of one cell. A subclass is an experiment; the docstring of each field is its help text."""

    # Strict: a value that only resembles the right one (10.0, "64") would not survive on a command line.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, revalidate_instances="always")
    name: ClassVar[str]
    """The experiment's name, also of its modules in `experiments` and `benchmarks` and its folder in `results`."""
    metrics: ClassVar[Mapping[str, str]]
    """Its metrics and their units, from METRICS; `record.measurement` has the metrics of all experiments."""
    details: ClassVar[tuple[str, ...]] = ()
    """Columns that distinguish a cell's rows of one metric, such as the name of a kernel."""
    timed: ClassVar[str] = ""
    """The metric that times a cell, if any: two cells with identical means were not both measured."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Parameters that the report does not compare: a table or figure shows cells with one value of each."""
    numeric_tests: ClassVar[tuple[str, ...]] = ()
    """The modules of `tests` that must pass on a machine before a measurement; none if the experiment measures only
    PyTorch."""
    tested_if: ClassVar[Mapping[str, str]] = {}
    """Numeric tests that only some cells need, and the parameter or property that is true for these cells."""
    per_step: ClassVar[tuple[str, ...]] = ()
    """Metrics that have a sample for each timed step."""
    added_later: ClassVar[Mapping[str, Any]] = {}
    """Parameters that earlier results lack, and the value that each had at that time."""
    processes: ClassVar[int] = 1
    """Number of processes that measure a cell together, one per GPU if there are GPUs. An experiment that varies it has
    a field of this name instead."""

    def __init_subclass__(cls) -> None:
        """Look up the units of its metrics, unless it defines its own metrics."""
        if "name" in vars(cls) and "metrics" not in vars(cls):
            cls.metrics = {name: metric.unit for name, metric in METRICS.get(cls.name, {}).items()}

    def needed_tests(self) -> set[str]:
        """Select the numeric tests of the code that this cell measures."""
        return {
            test for test in self.numeric_tests if test not in self.tested_if or getattr(self, self.tested_if[test])
        }

    def training_steps(self) -> dict[str, Setting]:
        """Describe each training step that a cell measures; none for another model class, which has no closed form."""
        other = getattr(self, "model", "") != getattr(type(self), "model", "")
        return {} if other else dict(self.settings_of_steps())

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe each training step of a cell, by the name of its rung or contender, for the closed forms."""
        return iter(())

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """The number of samples that a metric of a cell must have, or None if it is not planned."""
        return cell.steps if metric in cls.per_step else None

    @classmethod
    def rehearsal(cls, cell: Any) -> Any:
        """The cell that a job starting with `cell` measures first and discards, or None.

        It absorbs one-time costs of the process: initialization, first launches, growth of memory pools.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class SequencesExperiment(Experiment):
    """Parameters of a cell that runs a batch of sequences through a language model, or through one of its blocks."""

    size: Size = "small"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or your own shape as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 512
    """Tokens per sequence."""
    batch_size: Positive = 4
    """Sequences per batch."""


@dataclass(frozen=True, kw_only=True)
class ModelExperiment(SequencesExperiment):
    """Parameters of a cell that runs a whole language model."""

    vocab_size: Positive = 10_000
    """Vocabulary size."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 autocast over fp32 weights."""

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step."""
        yield "", Setting.of(vars(self))


E = TypeVar("E", bound="Experiment")


def make_cell(experiment: type[E], parameters: Mapping[str, Any]) -> E:
    """Make a validated cell.

    Raises:
        ValueError: an unknown parameter or a value that is not allowed, in one sentence.
    """
    known = [field.name for field in dataclasses.fields(experiment)]
    for key in parameters:
        if key not in known:
            raise ValueError(f"{key!r} is unknown here; allowed: {', '.join(known)}")
    try:
        return _adapter(experiment).validate_python(experiment(**parameters))
    except ValidationError as error:
        raise ValueError(explain(error)) from None


@cache  # Creating one takes far longer than using it, and a plan has hundreds of cells.
def _adapter(experiment: type[E]) -> TypeAdapter[E]:
    return TypeAdapter(experiment)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last parameter varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def expand(experiment: type[E], grid: Mapping[str, Sequence[Any]]) -> list[E]:
    """Make the cells of a grid, one for each combination of its values."""
    return [make_cell(experiment, parameters) for parameters in combinations(grid)]


def explain(error: Exception) -> str:
    """Explain a validation error's first problem in one sentence: key, value, and allowed values."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{key} is missing"
    allowed = first["msg"].removeprefix("Input should be ")
    for word, shorter in (("greater than or equal to", "at least"), ("less than or equal to", "at most")):
        allowed = allowed.replace(word, shorter)
    return f"{key} is {first['input']!r}; allowed: {allowed.replace('greater than', 'above')}"


def field_docs(owner: type) -> dict[str, str]:
    """Read the docstring under each field of a dataclass, including base classes, with the additions in `more_help`."""
    docs: dict[str, str] = {}
    for cls in reversed(owner.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for pair in itertools.pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=str(doc))):
                    docs[field] = " ".join(doc.split())
    return docs | {name: f"{docs[name]} {text}" for name, text in getattr(owner, "more_help", {}).items()}
