"""Shared by all rules: the plan of this run, the names of its files, and the environment of its jobs.

Needs `config`; makes PLAN, RESULTS, MEASURES, FIGURES and the functions that turn wildcards into job properties.
"""

import hashlib
import os
import sys
from pathlib import Path

from cs336_systems.leftovers import clear_leftovers
from cs336_systems.measure.source import source_digest
from cs336_systems.plan import make_plan
from snakemake.exceptions import WorkflowError

try:
    PLAN = make_plan(config)
except ValueError as error:
    raise WorkflowError(str(error))

clear_leftovers()

RESULTS = f"results/{PLAN.machine}"
# `snakemake writeup` takes the CSV files as they are: the rules that could make them are not even defined.
MEASURES = PLAN.measures and "writeup" not in sys.argv
# Jobs run this interpreter, and import this folder's package and scripts.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.getenv("PATH", "")]),
    PYTHONPATH=os.pathsep.join(filter(None, [str(workflow.basedir), os.getenv("PYTHONPATH")])),
)


wildcard_constraints:
    experiment="|".join(PLAN.jobs),


def planned_csvs(*experiments):
    """The CSV file of each planned job, of all experiments or of the named ones; none where nothing is measured."""
    return [
        f"{RESULTS}/raw/{job.experiment}/{job.name}.csv"
        for experiment in (experiments or PLAN.jobs)
        for job in PLAN.jobs[experiment].values()
        if MEASURES
    ]


def raw_csvs(wildcards):
    """What a table is made of: the planned files, or the files that are there where nothing is measured."""
    if MEASURES:
        return planned_csvs(wildcards.experiment)
    return sorted(glob_files(f"{RESULTS}/raw/{wildcards.experiment}"))


def glob_files(folder):
    """The CSV files of a folder."""
    return (
        [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".csv")]
        if os.path.isdir(folder)
        else []
    )


def job_of(wildcards):
    """The planned job that a CSV file's path names."""
    return PLAN.jobs[wildcards.experiment][wildcards.job]


def job_arguments(wildcards):
    """Command-line options of a job."""
    return job_of(wildcards).arguments


def job_source(wildcards):
    """Digest of the code that a job runs: when it changes, the job is stale."""
    models = {cell.model.partition(":")[0] for cell in job_of(wildcards).cells if hasattr(cell, "model")}
    return source_digest(f"cs336_systems.benchmarks.{wildcards.experiment}", *sorted(models))


# The tests that must pass on a machine before an experiment measures there; the others measure PyTorch alone.
NUMERIC_TESTS = {
    "end_to_end": "test_model",
    "attention": "test_attention",
    "flash": "test_attention_gpu" if PLAN.device == "cuda" else "test_attention",
    "flash_ablation": "test_attention_gpu",
}


def numeric_tests(wildcards):
    """The name of the test file behind an experiment, if any."""
    return NUMERIC_TESTS.get(wildcards.experiment, "")


FIGURES = []


def figure(name, category):
    """The output of a figure: an SVG in the interactive report, and in the list of the writeup's figures."""
    path = f"{RESULTS}/figures/{name}.svg"
    FIGURES.append(path)
    return report(path, category=category, labels={"figure": name}, caption=f"../report/captions/{name}.rst")


def plan_digest():
    """A digest of all planned jobs: when the plan changes, its coverage does."""
    commands = "\n".join(job.command for jobs in PLAN.jobs.values() for job in jobs.values())
    return hashlib.sha256(commands.encode()).hexdigest()
