"""`snakemake bundle`, `check` and `promote`: the rows of a smoke run as one file, checked and recorded."""

import shutil

import pytest

from tests.workflow.project import rows, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


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
