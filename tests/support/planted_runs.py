"""Result folders whose times are those of recorded files, honestly as they are or slowed down."""

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import parse_samples, summarize
from cs336_systems.record.rows import read_jobs, write_job
from tests.samples import ROOT

RECORDED = ROOT / "recorded/nvidia-h200/raw"


def slowed(row, factor):
    """A row all of whose samples took longer by a factor."""
    samples = parse_samples(row.samples) or [row.mean]
    found = summarize(row.metric, row.unit, [factor * sample for sample in samples])
    kept = ("mean", "std", "median", "p20", "p80", "samples")
    return row.model_copy(update={name: getattr(found, name) for name in kept})


def copy_of(job, folder, change=lambda row: row):
    """Write a recorded job, EXPERIMENT/JOB, into a result folder, each of its rows changed; returns the CSV's path."""
    kind = EXPERIMENTS[job.partition("/")[0]]
    path = folder / "raw" / f"{job}.csv"
    write_job(path, kind, [change(row) for row in read_jobs(kind, [RECORDED / f"{job}.csv"])])
    return path
