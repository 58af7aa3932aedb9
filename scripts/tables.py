"""Merge the CSV files of an experiment's jobs into one validated table."""

from pathlib import Path
from typing import Any

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import read_jobs, write_table
from scripts.log import log_to


def merge(experiment: str, csvs: list[str], output: str, machine: str) -> None:
    """Write the table of what the labelled machine measured; without files, one with columns and no rows."""
    kind = EXPERIMENTS[experiment]
    write_table(Path(output), kind, read_jobs(kind, map(Path, csvs), machine))


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        merge(
            experiment=snakemake.wildcards.experiment,
            csvs=list(snakemake.input),
            output=snakemake.output[0],
            machine=snakemake.params.machine,
        )
