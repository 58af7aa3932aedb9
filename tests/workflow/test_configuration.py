"""Bad configuration ends in one sentence, before anything runs."""

import re

import pytest

from tests.workflow.project import ROOT, copy_files, copy_project, edit, snakemake

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


@pytest.mark.slow
def test_a_missing_configuration_is_named(tmp_path):
    folder = copy_project(tmp_path)
    (folder / "config.yaml").unlink()
    output = snakemake(folder, check=False)
    assert "config.yaml: No such file" in output
    assert "Traceback" not in output
    assert not (folder / "results").exists()


def test_what_the_nodes_file_says_is_blamed_on_it(tmp_path):
    folder = copy_project(tmp_path)
    output = snakemake(folder, "-n", "--configfile", "profiles/slurm/nodes.yaml", check=False)
    assert "profiles/slurm/nodes.yaml: machine is '(edit profiles/slurm/nodes.yaml)'; allowed: auto, or" in output


@pytest.mark.slow
def test_a_model_that_cannot_be_called_is_named_before_any_job_begins(tmp_path):
    folder = copy_project(tmp_path)
    output = snakemake(folder, "end_to_end", "--config", "model=tests.support.raising_model:LM", check=False)
    assert "--config: model 'tests.support.raising_model:LM' cannot be loaded: RuntimeError: of itself" in output
    assert not list((folder / "results").rglob("*.*"))


def test_snakemake_runs_in_the_projects_folder(tmp_path):
    output = snakemake(tmp_path, "-s", str(ROOT / "Snakefile"), check=False)
    assert f"snakemake runs in {tmp_path}; allowed: the project's folder, {ROOT}" in output
    assert not (tmp_path / "results").exists()


def test_a_dry_run_says_what_another_machine_can_hold(tmp_path):
    folder = copy_project(tmp_path)
    copy_files(ROOT, folder, ["config.yaml"])
    output = snakemake(folder, "-n", "attention", "fsdp", "--config", "machine=2xRTX4090")
    title, table = (
        "2 x NVIDIA GeForce RTX 4090, 25.8 GB: cells by whether its memory is enough",
        "2.7B: 2 of 2 (from 33 GB)",
    )
    assert output.count(title) == output.count(table) == 1
    assert re.search(r"^attention +36 +4 .*sequence 16384: 4 of 8", output, re.M)
    assert not re.search("^(end_to_end|flash) ", output, re.M)


def test_nested_numbers_on_the_command_line(tmp_path):
    shape = "d_model: 64, d_ff: 128, num_layers: 1, num_heads: "
    folder = copy_project(tmp_path)
    snakemake(folder, "-n", "end_to_end", "--config", f"sizes={{mine: {{{shape}2}}}}")
    output = snakemake(folder, "-n", "end_to_end", "--config", f"sizes={{mine: {{{shape}2.5}}}}", check=False)
    assert "--config: sizes.mine.num_heads is 2.5; allowed: a whole number" in output
