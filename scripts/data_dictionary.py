"""The data dictionary: every column and metric of the CSV files, from what the code says of them.

Launch: python -m scripts.data_dictionary, which writes docs/data-dictionary.md.
"""

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from cs336_systems.experiments.base import field_docs
from cs336_systems.experiments.metrics import COMMON, DETAILS, Metric, metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.record import Provenance

DICTIONARY = Path("docs/data-dictionary.md")
INTRODUCTION = """# Data dictionary

Made by `python -m scripts.data_dictionary` from the code; edit the docstrings there, or
`cs336_systems/experiments/metrics.py`.

A job's measurements are a CSV file, `results/MACHINE/raw/EXPERIMENT/JOB.csv`, and `recorded/MACHINE/raw/` holds those
that come with the project. A row is one metric of one cell. Its columns, in this order: `experiment`; the experiment's
parameters; those of a measurement, with the experiment's details, which tell apart the rows that a cell has of one
metric; and those of the job. An older file may lack a column that was added later.

A metric that is *timed* took time of its own: at least n times its mean. One that is a *part of* another adds up to it
with the other parts; to about as much, if it was timed apart from it.
"""


def dictionary() -> str:
    """The whole document, in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## Columns of a measurement\n"
    yield from table(["column", "allowed", "meaning"], columns(Measurement, without=("details",)))
    yield "## Columns of a job\n"
    yield from table(["column", "allowed", "meaning"], columns(Provenance))
    yield "## Metrics of every experiment\n"
    yield from metrics_table(COMMON)
    for kind in EXPERIMENTS.values():
        yield f"## {kind.name}\n"
        yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
        yield from table(["parameter", "allowed", "meaning"], columns(kind))
        if kind.details:
            yield from table(["detail", "meaning"], [[f"`{name}`", DETAILS.get(name, "")] for name in kind.details])
        yield from metrics_table(metrics_of(kind))


def metrics_table(metrics: Mapping[str, Metric]) -> Iterator[str]:
    """A row for each metric."""
    body = [
        [f"`{name}`", of.unit or ("count" if of.counts else ""), of.meaning, role(of)] for name, of in metrics.items()
    ]
    yield from table(["metric", "unit", "meaning", "role"], body)


def role(metric: Metric) -> str:
    """Whether a metric took time of its own, and what it is a part of."""
    words = ["timed" if metric.timed else "", f"part of `{metric.part_of}`" if metric.part_of else ""]
    return ", ".join(filter(None, words))


def columns(owner: Any, without: Iterable[str] = ()) -> list[list[str]]:
    """A row for each field of a dataclass: its name, what is allowed, and its docstring."""
    hints, docs = typing.get_type_hints(owner, include_extras=True), field_docs(owner)
    return [
        [f"`{field.name}`", allowed(hints[field.name]), docs[field.name]]
        for field in dataclasses.fields(owner)
        if field.name not in without
    ]


def allowed(hint: Any) -> str:
    """The values that a type allows, in words."""
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is Annotated:
        kind, *limits = typing.get_args(hint)
        return " ".join([allowed(kind), *(f"from {limit.ge}" for limit in limits if isinstance(limit, Ge))])
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    return " or ".join(WORDS[kind] for kind in kinds)


WORDS = {int: "whole number", float: "number", bool: "True or False", str: "text"}


def table(header: list[str], body: Iterable[list[str]]) -> Iterator[str]:
    """The lines of a Markdown table, and an empty one."""
    for cells in (header, ["---"] * len(header), *body):
        yield f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"
    yield ""


if __name__ == "__main__":
    DICTIONARY.write_text(dictionary(), encoding="utf-8")
