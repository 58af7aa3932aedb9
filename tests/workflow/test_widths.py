"""Machines of one, two and four GPUs: what each of them measures, and that none of them loses what another measured."""

import pytest

from tests.workflow.project import copy_toy, measured_jobs, rows, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

JOBS = {1: "ping/all-1_processes", 2: "ping/all-2_processes", 4: "ping/all-4_processes"}


def test_no_run_loses_or_overwrites_what_another_measured(tmp_path):
    project = copy_toy(tmp_path, on_gpus=True)
    raw = project / "results/nvidia-h200/raw"
    measured: set[int] = set()
    for gpus in (1, 2, 1):
        before = {path: path.stat().st_mtime_ns for path in raw.rglob("*.csv")}
        fresh = {width for width in JOBS if width <= gpus} - measured
        assert measured_jobs(project, "measurements", gpus=gpus) == {JOBS[width] for width in fresh}
        measured |= fresh
        after = {path: path.stat().st_mtime_ns for path in raw.rglob("*.csv")}
        assert {path.stem for path in after} == {JOBS[width].split("/")[1] for width in measured}
        assert before.items() <= after.items()
    assert len({row[1:4] for row in rows(raw)}) == 2 * len(measured)  # cells: two sizes of message
    coverage = "results/nvidia-h200/coverage.csv"
    snakemake(project, coverage, gpus=1)
    (ping,) = (line for line in (project / coverage).read_text().splitlines() if line.startswith("ping,"))
    lost = 2 * (len(JOBS) - len(measured))
    assert ping == f"ping,all,6,{6 - lost},0,0,0,0,{lost},0"
    # Which jobs fit a machine is tested with the plan. One that is too wide says why when it is asked for.
    target = f"results/nvidia-h200/raw/{JOBS[4]}.csv"
    assert "Error: it needs 4 GPUs, but 2 are visible\n" in snakemake(project, "-n", target, check=False, gpus=2)
