"""Merge the CSV files of each experiment's jobs into one validated table, and count what of the plan they hold."""

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan, read_plan
from cs336_systems.record.digests import read_later, with_latest_digest
from cs336_systems.record.rows import parameters, read_jobs, row_model
from cs336_systems.record.validation import Row
from scripts.coverage import write_coverage
from scripts.log import log_to
from scripts.processes import in_processes
from scripts.views.data import keep

Cells = Collection[tuple[Any, ...]]
"""Cells by their parameters."""


def merge(
    experiment: str,
    csvs: list[str],
    output: str,
    machine: str,
    *,
    planned: Cells | None = None,
    unplanned: str = "",
    later: Mapping[str, str] | None = None,
) -> None:
    """Write the table of what the labelled machine measured; without files, one with columns and no rows.

    `later` has digests of code after renames, by those before them: rows of the same code get the same digest.

    If it is said which cells are planned, the table, and so the report, has no others. These, such as those of a grid
    that had more values when it was measured, are in a second table at the path `unplanned`, and only counted.
    """
    kind = EXPERIMENTS[experiment]
    rows = [with_latest_digest(row, later or {}) for row in read_jobs(kind, map(Path, csvs), machine)]
    if planned is not None:
        rows, others = split(kind, rows, planned)
        write(experiment, others, unplanned)
    write(experiment, rows, output)
    keep(experiment, output, rows)


def split(kind: type[Experiment], rows: Iterable[Row], planned: Cells) -> tuple[list[Row], list[Row]]:
    """The rows of planned cells, and the others."""
    names, asked = parameters(kind), set(planned)
    found: dict[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        found[tuple(getattr(row, name) for name in names) in asked].append(row)
    return found[True], found[False]


def planned_cells(plan: Plan, experiment: str) -> list[tuple[Any, ...]]:
    """The cells that a plan has of an experiment, by their parameters."""
    return [astuple(cell) for job in plan.jobs.get(experiment, {}).values() for cell in job.cells]


def write(experiment: str, rows: Iterable[Row], output: str) -> None:
    """Write rows as a CSV. They were validated when they were read: to do that again would take as long."""
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(row_model(EXPERIMENTS[experiment]).model_fields)
        writer.writerows(vars(row).values() for row in rows)


def merge_all(
    plan: str, csvs: Sequence[str], same_code: Sequence[str], tables: str, unplanned: str, coverage: str, processes: int
) -> None:
    """Write the tables of every experiment of a plan into two folders, and their coverage."""
    planned, later = read_plan(Path(plan)), read_later(map(Path, same_code))
    paths = {name: [path for path in csvs if Path(path).parent.name == name] for name in planned.jobs}
    # The largest first, so that no process is left with it when the others are done.
    largest_first = sorted(paths, key=lambda name: -sum(Path(path).stat().st_size for path in paths[name]))
    in_processes(
        merge,
        [
            {
                "experiment": name,
                "csvs": paths[name],
                "output": f"{tables}/{name}.csv",
                "machine": planned.machine,
                "planned": planned_cells(planned, name),
                "unplanned": f"{unplanned}/{name}.csv",
                "later": later,
            }
            for name in largest_first
        ],
        processes,
    )
    write_coverage(plan, {name: (f"{tables}/{name}.csv", f"{unplanned}/{name}.csv") for name in planned.jobs}, coverage)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        results = Path(snakemake.output.coverage).parent
        merge_all(
            plan=snakemake.input.plan,
            csvs=snakemake.input.csvs,
            same_code=snakemake.input.same_code,
            tables=str(results / "tables"),
            unplanned=str(results / "unplanned"),
            coverage=snakemake.output.coverage,
            processes=snakemake.threads,
        )
