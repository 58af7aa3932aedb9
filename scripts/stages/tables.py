"""Merge the CSV files of each experiment's jobs into one validated table, and count the planned cells in them."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import Plan, read_plan
from cs336_systems.record.rows import parameters, read_jobs, row_model
from cs336_systems.record.validation import Row
from scripts.tools.log import Refused, log_to
from scripts.tools.processes import in_processes
from scripts.views.coverage import cover_experiment
from scripts.views.data import frame


def merge(experiment: str, csvs: list[str], output: str, plan: Plan) -> list[dict[str, Any]]:
    """Write the table of the plan's machine; without files, a table with columns and no rows.

    The table, and so the report, has only the plan's cells. Others, such as cells of a grid that had more values when
    it was measured, are only counted.

    Returns:
        The experiment's rows of the plan's coverage.

    Raises:
        Refused: a file was not written by a measurement.
    """
    try:
        rows = read_jobs(EXPERIMENTS[experiment], map(Path, csvs), plan.machine)
    except ValueError as error:
        raise Refused(str(error)) from None
    write(experiment, planned_rows(plan, experiment, rows), output)
    return cover_experiment(plan, experiment, frame(experiment, rows))


def planned_rows(plan: Plan, experiment: str, rows: Iterable[Row]) -> list[Row]:
    """The rows of an experiment's planned cells."""
    names = parameters(EXPERIMENTS[experiment])
    asked = {astuple(cell) for job in plan.jobs.get(experiment, {}).values() for cell in job.cells}
    return [row for row in rows if tuple(getattr(row, name) for name in names) in asked]


def write(experiment: str, rows: Iterable[Row], output: str) -> None:
    """Write rows as a CSV. They were validated when they were read: validating them again would take as long."""
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(row_model(EXPERIMENTS[experiment]).model_fields)
        writer.writerows(vars(row).values() for row in rows)


def merge_all(plan: str, csvs: Sequence[str], tables: str, coverage: str, processes: int) -> None:
    """Write the table of every experiment of a plan into a folder, and their coverage."""
    planned = read_plan(Path(plan))
    paths = {name: [path for path in csvs if Path(path).parent.name == name] for name in planned.jobs}
    # The largest first, so that no process starts it when the others are done.
    largest_first = sorted(paths, key=lambda name: -sum(Path(path).stat().st_size for path in paths[name]))
    calls = [
        {"experiment": name, "csvs": paths[name], "output": f"{tables}/{name}.csv", "plan": planned}
        for name in largest_first
    ]
    covered = dict(zip(largest_first, in_processes(merge, calls, processes), strict=True))
    DataFrame(row for name in planned.jobs for row in covered[name]).to_csv(coverage, index=False)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        merge_all(
            plan=snakemake.input.plan,
            csvs=snakemake.input.csvs,
            tables=str(Path(snakemake.output[0]).parent),
            coverage=snakemake.output.coverage,
            processes=snakemake.threads,
        )
