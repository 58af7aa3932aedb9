"""The data dictionary: every column and metric of the CSV files, from their definitions in the code."""

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge

from cs336_systems.experiments.base import field_docs
from cs336_systems.experiments.metrics import COMMON, DETAILS, Metric, metrics_of
from cs336_systems.experiments.registry import KINDS
from cs336_systems.record.measurement import Measurement
from cs336_systems.record.rows import Provenance
from scripts.docs.markdown import table, with_sections

COLUMNS = ("column", "allowed", "meaning")


def page(text: str) -> str:
    """The text of the page with a section for each kind of column and each experiment."""
    return with_sections(text, sections())


def sections() -> Iterator[str]:
    """The headings, texts and tables."""
    yield "## Columns of a measurement\n"
    yield table(COLUMNS, columns(Measurement, without=("details",)))
    yield "## Columns of a job\n"
    yield table(COLUMNS, columns(Provenance))
    yield "## Metrics of every experiment\n"
    yield metrics_table(COMMON)
    for _, kind in sorted(KINDS.items()):
        yield f"## {kind.name}\n"
        yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
        yield table(["parameter", "allowed", "meaning"], columns(kind))
        if kind.details:
            yield table(["detail", "meaning"], [[f"`{name}`", DETAILS.get(name, "")] for name in kind.details])
        yield metrics_table(metrics_of(kind))


def metrics_table(metrics: Mapping[str, Metric]) -> str:
    """A row for each metric."""
    body = [
        [f"`{name}`", of.unit or ("count" if of.counts else ""), of.meaning, role(of)] for name, of in metrics.items()
    ]
    return table(["metric", "unit", "meaning", "role"], body)


def role(metric: Metric) -> str:
    """Whether a metric was timed separately, and which metric it is a part of."""
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
