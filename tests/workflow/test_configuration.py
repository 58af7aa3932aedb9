"""Bad configuration ends in one sentence, before anything runs."""

import pytest

from tests.workflow.project import copy_project, edit, snakemake

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        (
            "config.yaml",
            "strict: false",
            "strict: false\nspeed: fast",
            "unknown key 'speed' in the top level; allowed",
        ),
        (
            "config.yaml",
            "seed: 0",
            "seed: 0\nseed: 1",
            "config.yaml, line 8, column 1: the key 'seed' is",
        ),
        ("config.yaml", "recorded: none", "recorded: pdp-11", "recorded is 'pdp-11'; allowed: none, nvidia-h200"),
        (
            "config.yaml",
            "model:TransformerLM",
            "modell:TransformerLM",
            "no source file found for module 'cs336_",
        ),
        (
            "report/contents.yaml",
            "script: kernel_shares",
            "script: cooldown",
            "figures.kernel_shares.script is 'cooldown'; allowed",
        ),
    ],
)
def test_it_is_named_with_what_is_allowed(tmp_path, file, old, new, sentence):
    folder = copy_project(tmp_path)
    edit(folder / file, old, new)
    output = snakemake(folder, check=False)
    assert sentence in output
    assert "Traceback" not in output
    assert not (folder / "results").exists()


def test_a_model_that_cannot_be_called_is_named_before_any_job_begins(tmp_path):
    folder = copy_project(tmp_path)
    output = snakemake(folder, "end_to_end", "--config", "model=tests.raising_model:LM", check=False)
    assert "config.yaml: model 'tests.raising_model:LM' cannot be loaded: RuntimeError: of itself" in output
    assert not list((folder / "results").rglob("*.*"))


def test_snakemake_runs_in_the_projects_folder(tmp_path, finished):
    output = snakemake(tmp_path, "-s", str(finished / "Snakefile"), check=False)
    assert f"snakemake runs in {tmp_path}; allowed: the project's folder, {finished}" in output
    assert not (tmp_path / "results").exists()
