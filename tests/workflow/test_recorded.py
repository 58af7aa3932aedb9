"""Recorded results: used only when they are named; and how results are recorded: `snakemake promote` and `bundle`."""

import csv
import shutil

import pytest
import yaml

from cs336_systems.plan import make_plan
from tests.samples import ROOT, config
from tests.workflow.project import (
    CELL,
    copy_files,
    copy_project,
    edit_yaml,
    planned_jobs,
    planned_rules,
    rows,
    snakemake,
)

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_a_fresh_clone_on_an_h200_plans_every_measurement_that_one_gpu_can_do(tmp_path):
    clone = copy_project(tmp_path, {})
    copy_files(ROOT, clone, ["config.yaml", "report/contents.yaml"])
    plan = make_plan(config(machine="1 x NVIDIA H200"))
    everything = {job.path for job in plan.all_jobs() if not plan.obstacle(job)}
    assert (clone / "recorded/nvidia-h200/raw").is_dir()
    assert planned_jobs(clone, gpus=1) == everything
    of_the_recorded = planned_rules(clone, "--config", "recorded=nvidia-h200", gpus=1)
    assert {"figures", "typeset"} <= of_the_recorded
    assert "measure" not in of_the_recorded


def test_recorded_results_are_only_read_and_need_not_be_complete(project):
    (project / "recorded/cpu").mkdir()
    for part in ("raw", "traces"):
        (project / "results/cpu" / part).rename(project / "recorded/cpu" / part)
    shutil.rmtree(project / "results")
    grids = yaml.safe_load((project / "config.yaml").read_text())["experiments"]
    grids["end_to_end"]["smoke"]["longer"] = {**CELL, "context": [32]}
    edit_yaml(project / "config.yaml", experiments=grids)
    before = {path: path.read_bytes() for path in (project / "recorded").rglob("*.csv*")}
    snakemake(project, "figures", "results/recorded/cpu/coverage.csv", "--config", "recorded=cpu")
    assert "the whole step" in (project / "results/recorded/cpu/figures/kernel_timeline.svg").read_text()
    assert not (project / "results/cpu").exists()
    assert {path: path.read_bytes() for path in (project / "recorded").rglob("*.csv*")} == before
    with (project / "results/recorded/cpu/coverage.csv").open() as file:
        coverage = {row["grid"]: row for row in csv.DictReader(file) if row["experiment"] == "end_to_end"}
    assert coverage["eager"]["ok"] == coverage["eager"]["planned"] == "2"
    assert coverage["longer"]["not run"] == coverage["longer"]["planned"] == "1"


def test_what_was_measured_here_is_promoted_on_request(project):
    (project / "recorded/cpu/raw/accumulation").mkdir(parents=True)
    (project / "recorded/cpu/raw/accumulation/all.csv").write_text("an earlier recording of the same job\n")
    (project / "recorded/cpu/raw/accumulation/other.csv").write_text("another job\n")
    snakemake(project, "promote")
    assert (project / "recorded/cpu/raw/accumulation/other.csv").read_text() == "another job\n"
    (project / "recorded/cpu/raw/accumulation/other.csv").unlink()
    assert rows(project / "recorded/cpu/raw") == rows(project / "results/cpu/raw") != set()
    recorded, made = (project / folder / "cpu/traces/training_step.json.gz" for folder in ("recorded", "results"))
    assert recorded.read_bytes() == made.read_bytes()
    assert planned_jobs(project, "--config", "recorded=cpu") == set()


def test_a_smoke_run_is_bundled_checked_and_promoted(project):
    assert "cpu.crate.zip" in snakemake(project, "bundle")
    made = project / "a bundle.zip"
    shutil.move(project / "results/cpu/cpu.crate.zip", made)
    snakemake(project, "bundle")
    assert (project / "results/cpu/cpu.crate.zip").read_bytes() == made.read_bytes()
    measured = rows(project / "results/cpu/raw")
    shutil.rmtree(project / "results")
    printed = snakemake(project, "check", "--config", f"bundle={made}")
    assert "passed             rows " in printed
    assert "passed             code " in printed
    assert f"{made}: nothing failed" in printed
    assert "cannot be decided  cards        none, which `snakemake card` makes" in printed
    snakemake(project, "promote", "--config", f"bundle={made}")
    assert rows(project / "recorded/cpu/raw") == measured != set()
