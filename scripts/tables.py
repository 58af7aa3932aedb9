"""Merge the CSV files of an experiment's jobs into one validated table."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import parameters, read_jobs, write_table
from scripts.log import log_to

Cells = Collection[tuple[Any, ...]]
"""Cells by their parameters."""


def merge(
    experiment: str, csvs: list[str], output: str, machine: str, *, planned: Cells | None = None, unplanned: str = ""
) -> None:
    """Write the table of what the labelled machine measured; without files, one with columns and no rows.

    If it is said which cells are planned, the table, and so the report, has no others. These, such as those of a grid
    that had more values when it was measured, are in a second table at the path `unplanned`, and only counted.
    """
    kind = EXPERIMENTS[experiment]
    rows = read_jobs(kind, map(Path, csvs), machine)
    if planned is not None:
        names, asked = parameters(kind), set(planned)
        others = [row for row in rows if tuple(getattr(row, name) for name in names) not in asked]
        rows = [row for row in rows if tuple(getattr(row, name) for name in names) in asked]
        write_table(Path(unplanned), kind, others)
    write_table(Path(output), kind, rows)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        merge(
            experiment=snakemake.wildcards.experiment,
            csvs=list(snakemake.input),
            output=snakemake.output.table,
            machine=snakemake.params.machine,
            planned=snakemake.params.planned,
            unplanned=snakemake.output.unplanned,
        )
