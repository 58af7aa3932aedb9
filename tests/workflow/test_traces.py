"""The trace of a step: made with the report, drawn from a recording too; Nsight Systems is asked for only by name."""

import shutil

import pytest

from tests.workflow.project import edit, planned_rules, snakemake

pytestmark = pytest.mark.workflow

FIGURE = "figures/kernel_timeline.svg"


def test_the_report_draws_the_trace_that_it_made(finished):
    assert (finished / "results/cpu/traces/training_step.json.gz").is_file()
    assert "the whole step" in (finished / "results/cpu" / FIGURE).read_text()


@pytest.mark.slow
def test_a_changed_step_is_traced_again(project):
    edit(project / "config.yaml", "trace:\n  smoke:\n    size: nano", "trace:\n  smoke:\n    size: micro")
    assert planned_rules(project) >= {"kernel_trace", "figures", "typeset"}
    assert "kernel_trace" not in planned_rules(project, "writeup")


@pytest.mark.slow
def test_a_recorded_trace_is_drawn(project):
    shutil.copytree(project / "results/cpu/raw", project / "recorded/cpu/raw")
    shutil.copytree(project / "results/cpu/traces", project / "recorded/cpu/traces")
    snakemake(project, "figures", "--config", "recorded=cpu")
    assert "the whole step" in (project / "results/recorded/cpu" / FIGURE).read_text()


@pytest.mark.slow
def test_without_nsys_the_target_says_what_answers_instead(project):
    printed = snakemake(project, "nsys")
    assert "nsys is not on the PATH, so no .nsys-rep file was written; `snakemake kernel_profile`" in printed
    assert not list(project.glob("results/cpu/nsys/*"))
