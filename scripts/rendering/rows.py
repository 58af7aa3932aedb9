"""All rows of the tables as one JSON text for the page's explorer, column by column, as the CSV files have them.

The tables were validated when they were written, so they are only read here, without pandas, which takes a second to
import.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cs336_systems.experiments.base import Experiment, field_docs
from cs336_systems.experiments.metrics import COMMON, metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan
from cs336_systems.record.rows import Provenance, parameters, row_model


def rows_json(plan: Plan, tables: Mapping[str, Path], reference: Mapping[str, Sequence[Path]]) -> str:
    """The rows of every experiment: this machine's table, then the recorded files of the machine to compare with."""
    other = {plan.reference.parent.name: reference} if plan.reference else {}
    machines = {plan.machine: {name: [path] for name, path in tables.items()}} | other
    experiments = {
        name: described(plan, name, {machine: files.get(name, []) for machine, files in machines.items()})
        for name in tables
    }
    filled = {name: entry for name, entry in experiments.items() if entry["job"]}
    return json.dumps(filled, separators=(",", ":"), ensure_ascii=False)


def described(plan: Plan, experiment: str, files: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """An experiment's rows, by machine, with the meanings of its parameters and metrics, and the code that measures
    each cell.
    """
    kind = EXPERIMENTS[experiment]
    names = parameters(kind)
    jobs = list(plan.jobs[experiment].values())
    job_of = {
        tuple(text(getattr(cell, name)) for name in names): index
        for index, job in enumerate(jobs)
        for cell in job.cells
    }

    def job(row: Mapping[str, str]) -> int:
        return job_of.get(tuple(row[name] for name in names), len(jobs))

    # In the order of the plan, which the reader knows, one machine after the other.
    rows = [
        {"machine": machine, **row}
        for machine, paths in files.items()
        for row in sorted((row for path in paths for row in read_rows(kind, path)), key=job)
    ]
    docs = field_docs(kind)
    return {
        "parameters": {name: docs.get(name, "") for name in names},
        "details": list(kind.details),
        "timed": kind.timed,
        "metrics": {name: metric.meaning for name, metric in {**COMMON, **metrics_of(kind)}.items()},
        "commands": [job.command for job in jobs],
        "job": [job(row) for row in rows],
        "columns": {name: [row[name] for row in rows] for name in ("machine", *row_model(kind).model_fields)},
    }


def read_rows(kind: type[Experiment], path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file as texts; an older file may lack columns that were added later."""
    later = {**kind.added_later, **Provenance.added_later}
    with path.open(newline="", encoding="utf-8-sig") as file:
        for record in csv.DictReader(file):
            yield {name: text(value) for name, value in later.items()} | record


def text(value: object) -> str:
    """A value as in the CSV files."""
    return "" if value is None else str(value)
