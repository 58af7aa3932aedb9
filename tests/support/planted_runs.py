"""Result folders with the times of recorded files, unchanged or slowed down."""

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.record.rows import read_jobs, write_job
from tests.samples import ROOT

RECORDED = ROOT / "recorded/nvidia-h200/raw"


def copy_of(job, folder, change=lambda row: row):
    """Write a recorded job, EXPERIMENT/JOB, into a result folder, each of its rows changed; returns the CSV's path."""
    kind = EXPERIMENTS[job.partition("/")[0]]
    path = folder / "raw" / f"{job}.csv"
    write_job(path, kind, [change(row) for row in read_jobs(kind, [RECORDED / f"{job}.csv"])])
    return path


def scaled(row, factor):
    """A row with its samples, and so its statistics, times a factor."""
    times = {name: getattr(row, name) for name in ("mean", "std", "median", "p20", "p80")}
    scaled = {name: None if value is None else factor * value for name, value in times.items()}
    samples = format_samples([factor * sample for sample in parse_samples(row.samples)])
    return row.model_copy(update={**scaled, "samples": samples})
