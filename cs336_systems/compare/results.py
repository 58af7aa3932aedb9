"""The rows of one result folder: located by path or label, read and validated."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path

from cs336_systems.experiments.registry import KINDS, ON_REQUEST
from cs336_systems.measure.gpus import full_name
from cs336_systems.record.machine import machine_label
from cs336_systems.record.rows import read_jobs
from cs336_systems.record.validation import Row

PARENTS = ("results", "recorded")
"""Folders in which a label is looked up."""


@dataclass(frozen=True)
class Results:
    """The measurements of one machine."""

    name: str
    """The text that named the folder."""
    raw: Path
    """The folder of the CSV files."""
    rows: tuple[Row, ...]


def read_results(name: str) -> Results:
    """Read a result folder: a path, or the label or the GPU's name of one in `results` or `recorded`.

    Raises:
        ValueError: the folder does not exist, has no results, or has a file that no measurement wrote (truncated,
            edited, without its SHA-256), in one sentence.
    """
    raw, csvs = find(name)
    by_experiment: dict[str, list[Path]] = {}
    for path in csvs:
        by_experiment.setdefault(path.parent.name, []).append(path)
    rows = tuple(row for kind, paths in by_experiment.items() for row in read_jobs(KINDS[kind], last_run(kind, paths)))
    if not rows:
        raise ValueError(f"{name}: its CSV files have no rows; run `snakemake` to measure")
    if len(machines := dict.fromkeys(machine_label(row.gpu) for row in rows)) > 1:
        raise ValueError(f"{name}: has rows of {' and '.join(machines)}; allowed: one GPU model per folder")
    return Results(name, raw, rows)


def last_run(kind: str, csvs: Sequence[Path]) -> Sequence[Path]:
    """The CSV files of an experiment to compare: each run on request has its own, TIME-JOB.csv."""
    times = [path.name.partition("-")[0] for path in csvs]
    return [path for path, time in zip(csvs, times, strict=True) if kind not in ON_REQUEST or time == max(times)]


def labels_of(name: str) -> list[str]:
    """The labels that a name may mean: itself and, for a GPU's name such as H200, that GPU's label."""
    labels = [name] if Path(name).name == name else []
    with contextlib.suppress(ValueError):
        labels.append(machine_label(full_name(name)))
    return list(dict.fromkeys(labels))


def find(name: str) -> tuple[Path, Sequence[Path]]:
    """The folder of the CSV files that a name stands for, and the files; raises as `read_results` does."""
    labelled = [Path(parent, label) for label in labels_of(name) for parent in PARENTS]
    # Path.is_dir raises an error for a name that is too long.
    folders = [Path(name)] if isdir(name) else [folder for folder in labelled if isdir(folder)]  # noqa: PTH112
    folders = [folder for folder in folders if raw_csvs(folder)] or folders  # not one that has only logs
    if len(folders) > 1:
        both = " and ".join(map(str, folders))
        raise ValueError(f"{name} is the label of {both}; allowed: the path of one of them")
    if not folders:
        labels = sorted({path.name for parent in PARENTS for path in Path(parent).glob("*") if raw_csvs(path)})
        raise ValueError(
            f"no results are named {name[:60]!r}; allowed: a folder with raw/EXPERIMENT/JOB.csv, or a label: "
            f"{', '.join(labels) or 'none is measured or recorded yet'}"
        )
    csvs = raw_csvs(folders[0])
    if not csvs:
        raise ValueError(f"{folders[0]} has no results; allowed: a folder with raw/EXPERIMENT/JOB.csv")
    return csvs[0].parent.parent, csvs


def raw_csvs(folder: Path) -> list[Path]:
    """The CSV files of jobs, EXPERIMENT/JOB.csv, in a folder's `raw`, or else in the folder itself."""
    of_raw, own = (
        [path for path in sorted(base.glob("*/*.csv")) if path.parent.name in KINDS]
        for base in (folder / "raw", folder)
    )
    return of_raw or own
