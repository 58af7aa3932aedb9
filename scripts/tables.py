"""Merge the CSV files of an experiment's jobs into one validated table of what was planned."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import parameters, read_jobs, write_table
from scripts.log import log_to


def merge(
    experiment: str, csvs: list[str], planned: Collection[tuple[Any, ...]], output: str, unplanned: str, machine: str
) -> None:
    """Write the table of what the labelled machine measured; without files, one with columns and no rows.

    The report is made of the planned cells, given by their parameters. A second table has the others, such as those of
    a grid that had more values when it was measured; it is only counted.
    """
    kind = EXPERIMENTS[experiment]
    names, cells = parameters(kind), set(planned)
    rows = read_jobs(kind, map(Path, csvs), machine)
    asked = [tuple(getattr(row, name) for name in names) in cells for row in rows]
    for path, wanted in ((output, True), (unplanned, False)):
        write_table(Path(path), kind, [row for row, is_asked in zip(rows, asked, strict=True) if is_asked == wanted])


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        merge(
            experiment=snakemake.wildcards.experiment,
            csvs=list(snakemake.input),
            planned=snakemake.params.planned,
            output=snakemake.output.table,
            unplanned=snakemake.output.unplanned,
            machine=snakemake.params.machine,
        )
