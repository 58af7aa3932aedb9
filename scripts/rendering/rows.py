"""All rows of the tables as one JSON text for the page's explorer, column by column.

The tables were validated when they were made, so they are only read here; no pandas, which takes a second to import.
"""

import csv
import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cs336_systems.experiments.base import Experiment, field_docs
from cs336_systems.experiments.metrics import COMMON, metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import Measurement
from cs336_systems.record.rows import Provenance, parameters, row_model

Columns = dict[str, list[Any]]


def rows_json(plan: Plan, tables: Mapping[str, Path], reference: Mapping[str, Sequence[Path]]) -> str:
    """The rows of every experiment: this machine's table, then the recorded files of the machine to compare with."""
    experiments = {
        name: described(plan, name, {plan.machine: [table]} | other_machine(plan, reference, name))
        for name, table in tables.items()
    }
    return json.dumps({"machine": plan.machine, "experiments": experiments}, separators=(",", ":"), ensure_ascii=False)


def other_machine(plan: Plan, reference: Mapping[str, Sequence[Path]], experiment: str) -> dict[str, Sequence[Path]]:
    """The files of the machine to compare with by its label, if there is one."""
    return {plan.reference.parent.name: reference.get(experiment, [])} if plan.reference else {}


def described(plan: Plan, experiment: str, files: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """An experiment's rows, by machine, with what its parameters and metrics mean and what measures each cell."""
    kind = EXPERIMENTS[experiment]
    names = parameters(kind)
    columns: Columns = {name: [] for name in ("machine", *row_model(kind).model_fields)}
    for machine, paths in files.items():
        for path in paths:
            read_columns(kind, path, columns)
        columns["machine"] += [machine] * (len(columns["experiment"]) - len(columns["machine"]))
    jobs = list(plan.jobs[experiment].values())
    job_of = {
        tuple(text(getattr(cell, name)) for name in names): index
        for index, job in enumerate(jobs)
        for cell in job.cells
    }
    job = [job_of.get(cell, len(jobs)) for cell in zip(*(columns[name] for name in names), strict=True)]
    # In the order of the plan, which a reader knows, but one machine after the other.
    order = sorted(range(len(job)), key=lambda row: (list(files).index(columns["machine"][row]), job[row]))
    docs = field_docs(kind)
    found = {
        "about": (kind.__doc__ or "").partition("\n")[0],
        "parameters": {name: docs.get(name, "") for name in names},
        "details": list(kind.details),
        "timed": kind.timed,
        "metrics": {name: metric.meaning for name, metric in {**COMMON, **metrics_of(kind)}.items()},
        "commands": [plan.command(job) for job in jobs],
        "job": [job[row] for row in order],
    }
    return found | {
        "columns": {name: typed(kind, name, [column[row] for row in order]) for name, column in columns.items()}
    }


def read_columns(kind: type[Experiment], path: Path, columns: Columns) -> None:
    """Append the rows of a CSV file, as text; an older file may lack columns that were added later."""
    later = {**kind.added_later, **Measurement.added_later, **Provenance.added_later}
    with path.open(newline="", encoding="utf-8-sig") as file:
        for record in csv.DictReader(file):
            for name in row_model(kind).model_fields:
                columns[name].append(record[name] if name in record else text(later[name]))


def text(value: object) -> str:
    """A value as the CSV files have it."""
    return "" if value is None else str(value)


def typed(kind: type[Experiment], name: str, column: list[str]) -> list[Any]:
    """A column's texts, or its numbers where its type says so; an empty field is None."""
    if name not in {field.name for part in (kind, Measurement) for field in dataclasses.fields(part)}:
        return column
    annotation = row_model(kind).model_fields[name].annotation
    choices = typing.get_args(annotation) or (annotation,)
    if not any(choice in (int, float) or type(choice) in (int, float) for choice in choices):
        return column
    return [number(value) for value in column]


def number(value: str) -> float | None:
    """A finite number, whole ones without a decimal point; None for anything else."""
    if not value or not math.isfinite(read := float(value)):
        return None
    return int(read) if read.is_integer() and abs(read) < 2**53 else read
