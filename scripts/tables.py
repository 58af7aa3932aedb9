"""Merge the CSV files of an experiment's jobs into one validated table."""

from pathlib import Path

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import read_rows, write_rows
from scripts.log import log_to


def merge(experiment: str, csvs: list[str], output: str) -> None:
    """Write the table; without files, one that has columns and no rows."""
    kind = EXPERIMENTS[experiment]
    write_rows(Path(output), kind, read_rows(kind, map(Path, csvs)))


if __name__ == "__main__":
    with log_to(snakemake.log[0]):
        merge(experiment=snakemake.wildcards.experiment, csvs=list(snakemake.input), output=snakemake.output[0])
