"""The runs of the card in a machine's folder: raw/card/TIME-JOB.csv."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from cs336_systems.experiments.card import Card
from cs336_systems.record.rows import read_jobs

RECORDED = Path("recorded")


def read_run(csvs: Iterable[Path], machine: str | None = None) -> list[Any]:
    """Read the rows of one run.

    Raises:
        ValueError: there is none, or as `read_jobs`.
    """
    csvs = sorted(csvs)
    rows: list[Any] = list(read_jobs(Card, csvs, machine))
    if not rows:
        raise ValueError(f"{csvs[0]} has no row; allowed: rows that `snakemake card` has measured")
    return rows


def read_cards(folder: Path, machine: str) -> dict[str, list[Any]]:
    """Read the rows of each run in the folder of a machine, by its time; raises as `read_run` does."""
    runs = groupby(sorted(folder.glob("raw/card/*.csv")), key=lambda path: path.stem.partition("-")[0])
    return {time: read_run(csvs, machine) for time, csvs in runs}
