"""The structure of config.yaml as one pydantic model, which also writes its JSON Schema, and the reports of mistakes.

The parameters inside a grid are checked against the experiment's dataclass (`experiments`), so they are not repeated
here. No torch here.

Launch: python -m cs336_systems.config > config.schema.json
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

from cs336_systems.experiments.registry import EXPERIMENTS, KINDS

CONFIG = "config.yaml"
AUTO, NONE, CPU, CUDA = "auto", "none", "cpu", "cuda"
SMOKE, HANDOUT, QUICK = "smoke", "handout", "quick"
"""Scales; `quick` has no separate grids, but measures cells of the handout's grids."""
LARGEST_SEED = 2**63 - 1
LONGEST_QUOTE = 200
A_NAME = "text (a number in quotes)"
ABOUT_KEYS = ("invalid_key", "extra_forbidden", "missing")
"""pydantic's errors about a key, with the path of the key's value."""

Sources = Sequence[tuple[str, Mapping[str, Any]]]
"""The sources of a configuration: each source's name and content, later ones overriding earlier ones."""


class Mistake(ValueError):
    """An invalid part of the configuration: its path of keys, and a sentence about it."""

    def __init__(self, path: Iterable[Any], sentence: str) -> None:
        super().__init__(sentence)
        self.path = tuple(path)


class Part(BaseModel):
    """A mapping in config.yaml with fixed keys. A field's description is the allowed values in its error."""

    # Strict: for pydantic 1.0 and "1" are integers; for a command line they are not.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Shape(Part):
    """A user's model shape."""

    d_model: int = Field(description="a whole number")
    d_ff: int = Field(description="a whole number")
    num_layers: int = Field(description="a whole number")
    num_heads: int = Field(description="a whole number")


class Grid(Part):
    """Values of an experiment's parameters; all combinations are measured."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"minProperties": 1, "propertyNames": {"description": A_NAME}}
    )
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1, description="a list of at least one value")]]

    one_job_per: list[Annotated[str, Field(description="the name of a parameter")]] = Field(
        default=[], description="a list of the grid's parameters"
    )
    quick: Literal["none"] | dict[str, list[Any]] = Field(
        default={}, description="none, or a mapping from some of the grid's parameters to fewer of their values"
    )

    @model_validator(mode="after")
    def _not_empty(self) -> "Grid":
        if not self.model_fields_set:
            raise ValueError
        return self

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of each parameter."""
        return self.model_extra or {}


Text = Annotated[str, Field(description=A_NAME)]
GridName = Annotated[str, Field(pattern=r"^\w+$", description="letters, digits and underscores (a number in quotes)")]
GridValues = Annotated[
    Grid, Field(description="a mapping from each parameter, of at least one, to a list of at least one value")
]
Grids = Annotated[
    dict[GridName, GridValues],
    Field(description="a mapping from a grid's name (letters, digits, underscores) to the grid"),
]
OwnShape = Annotated[Shape, Field(description="d_model, d_ff, num_layers and num_heads, each a whole number")]
Step = Annotated[
    dict[Text, Annotated[str | int | bool, Field(description="one value")]],
    Field(description="a mapping from each parameter to its value"),
]
Own = Annotated[
    dict[Text, Annotated[str, Field(description="a function or class as package.module:name")]],
    Field(description="a mapping from a name to its location, as package.module:name"),
]


class Implementations(Part):
    """The user's implementations by family, and a folder whose tests/adapters.py provides some."""

    attention: Own = {}
    data_parallel: Own = {}
    sharded_optimizer: Own = {}
    fsdp: Own = {}
    adapters: str = Field("none", description="none, or a folder with a tests/adapters.py like the handout's")


class Trace(Part):
    """The step that is traced, at each scale, and a rung of the training ladder, which smoke leaves out."""

    smoke: Step
    handout: Step
    fastest: Step = {}


class Scales(Part):
    """An experiment's grids at each scale."""

    smoke: Grids
    handout: Grids


ItsScales = Annotated[
    Scales, Field(description="the scales smoke and handout, each a mapping from a grid's name to the grid")
]


def _prices(text: str) -> str:
    """Refuse prices that are not above 0."""
    if text != NONE and not all(float(price) > 0 for price in text.split(",")):
        raise ValueError
    return text


def _percentage(text: str) -> str:
    """Refuse a percentage that is not between 0 % and 100 %."""
    if text != NONE and not 0 < float(text.removesuffix("%")) < 100:
        raise ValueError
    return text


def _named(experiments: Any) -> Any:
    """Refuse an unknown experiment, and a configuration that lacks one of the report's experiments."""
    if not isinstance(experiments, dict):
        return experiments
    wrong = [("invalid_key", key) for key in experiments if key not in KINDS]
    wrong += [("missing", name) for name in sorted(EXPERIMENTS) if name not in experiments]
    if wrong:
        errors = [InitErrorDetails(type=kind, loc=(str(key),), input=key) for kind, key in wrong]
        raise ValidationError.from_exception_data("experiments", errors)
    return experiments


def _write_names(schema: dict[str, Any]) -> None:
    """Write the experiments' names into the schema."""
    grids = schema.pop("additionalProperties")
    schema |= {"properties": dict.fromkeys(sorted(KINDS), grids), "additionalProperties": False}
    schema |= {"required": sorted(EXPERIMENTS)}


class Config(Part):
    """The content of config.yaml."""

    machine: str = Field(
        description="auto, or the jobs' machine if it is another: cpu, or a number of GPUs and their model as in '4 x "
        "NVIDIA H200' (python -m cs336_systems.record.machine prints it) or 'RTX 4090'"
    )
    recorded: str = Field(pattern="^[a-z0-9-]+$", description="none, or the name of a folder in recorded/")
    bundle: str = Field(description="none, or the path of a bundle")
    scale: Literal["auto", "smoke", "quick", "handout"] = Field(description="auto, smoke, quick or handout")
    model: str = Field(
        pattern=r"^[\w.]+:\w+$", max_length=200, description="a model class as package.module:Class, up to 200 letters"
    )
    implementations: Implementations = Field(
        description="attention, data_parallel, sharded_optimizer and fsdp, each a mapping from a name to "
        "package.module:name, and adapters, a folder with a tests/adapters.py"
    )
    students: str = Field(description="none, or a folder with one folder for each student")
    strict: bool = Field(description="true or false")
    compared: str = Field(alias="with", min_length=1, description="none, a label in results/ or recorded/, or a folder")
    price: (
        Annotated[float, Field(gt=0, allow_inf_nan=False)]
        | Annotated[str, Field(pattern=r"^(none|[0-9.]+(,[0-9.]+)?)$"), AfterValidator(_prices)]
    ) = Field(description="none, or a price per GPU-hour above 0, or two of them as in 3.50,2.10")
    fail_if_slower: Annotated[str, AfterValidator(_percentage)] = Field(
        pattern="^(none|[0-9.]+%)$", description="none, or a percentage above 0% and below 100%, such as 5%"
    )
    seed: int = Field(ge=0, le=LARGEST_SEED, description=f"a whole number from 0 to {LARGEST_SEED}")
    cell_timeout: int = Field(ge=1, le=10**6, description="a whole number of seconds, from 1 to 1000000")
    sizes: dict[Text, OwnShape] = Field(description="a mapping from a name to d_model, d_ff, num_layers and num_heads")
    trace: Trace = Field(description="the scales smoke and handout, each a mapping from each parameter to its value")
    experiments: Annotated[dict[str, ItsScales], BeforeValidator(_named)] = Field(
        description="a mapping from each experiment to its grids, which may be empty", json_schema_extra=_write_names
    )


def read_config(content: Mapping[str, Any]) -> Config:
    """Check a configuration's structure.

    Raises:
        Mistake: a key or a value that is not allowed; the least nested of several.
    """
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _mistake(content, error) from None


def _mistake(content: Mapping[str, Any], error: ValidationError) -> Mistake:
    """Convert a validation error into one sentence: key, value, and the schema's allowed values."""
    errors = error.errors()
    first = min(errors, key=lambda each: (len(_place(each)), each["type"] == "missing"))
    loc, place = first["loc"], _place(first)
    schema, value, path = _follow(content, place)
    where = ".".join(map(str, path)) or "the top level"
    if first["type"] == "missing":
        return Mistake(path, f"{'.'.join(map(str, (*path, loc[-1])))} is missing")
    if place == loc or path != place:
        return Mistake(path, f"{where} is {_quoted(value)}; allowed: {schema['description']}")
    if "propertyNames" in schema:
        allowed = schema["propertyNames"]["description"]
        return Mistake((*path, first["input"]), f"{where} has the key {first['input']!r}; allowed: {allowed}")
    unknown = [key for key in value if key not in schema["properties"]]
    names = ", ".join(map(repr, unknown))
    allowed = ", ".join(schema["properties"])
    return Mistake((*path, unknown[0]), f"unknown key {names} in {where}; allowed: {allowed}")


def _quoted(value: Any) -> str:
    """A value to quote in a sentence; long values are truncated."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def _place(error: ErrorDetails) -> tuple[int | str, ...]:
    """The path of the value in an error; for a key, the path of its mapping."""
    loc = error["loc"]
    if loc[-1:] == ("[key]",):
        return loc[:-2]
    return loc[:-1] if error["type"] in ABOUT_KEYS else loc


def _follow(content: Any, place: Sequence[int | str]) -> tuple[dict[str, Any], Any, tuple[int | str, ...]]:
    """The schema, the value and the path at a path; a union counts as a whole."""
    whole = schema = Config.model_json_schema()
    for depth, key in enumerate(place):
        patterns = schema.get("patternProperties", {}).values()
        others = [schema[key] for key in ("additionalProperties", "items") if schema.get(key)]
        inner = schema.get("properties", {}).get(key) or next(iter([*patterns, *others]), None)
        if inner is None:
            return schema, content, tuple(place[:depth])
        schema, content = whole["$defs"].get(inner.get("$ref", "").rpartition("/")[2], {}) | inner, content[key]
    return schema, content, tuple(place)


def as_in_a_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `--config` as in a YAML file.

    Snakemake converts `true`, and every number and switch inside a mapping or a list, to text.
    """
    return {
        key: _from_text(value) if key == "strict" or not isinstance(value, str) else value
        for key, value in given.items()
    }


def _from_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _from_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_from_text(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # also a number with thousands of digits
        return value
    return read if isinstance(read, int | float) else value


def set_by(sources: Sources, path: Iterable[Any]) -> str:
    """The name of the source that sets the value at a path of keys: the last one that has it, or else the first."""
    path = tuple(path)
    return next((name for name, content in reversed(sources) if path and _has(content, path)), sources[0][0])


def _has(content: Any, path: Iterable[Any]) -> bool:
    for key in path:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


if __name__ == "__main__":
    argparse.ArgumentParser(description="Print the JSON Schema of config.yaml.").parse_args()
    print(json.dumps(Config.model_json_schema(), indent=2))
