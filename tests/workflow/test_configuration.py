"""Bad configuration ends in one sentence, before anything runs."""

import re
import shutil

import pytest

from tests.workflow.project import ROOT, copy_files, copy_project, edit, snakemake

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project. What a test changes, it changes back."""
    return copy_project(tmp_path_factory.mktemp("project"))


def refused(folder, *arguments):
    """What Snakemake prints before it ends without running anything."""
    output = snakemake(folder, *arguments, check=False)
    assert "Traceback" not in output
    assert not (folder / "results").exists()
    return output


# Which mistakes there are, and which source each is blamed on, is tested with the plan and the contents.


def test_a_wrong_configuration_ends_in_a_sentence(project):
    output = refused(project, "-n", "--configfile", "profiles/slurm/nodes.yaml")
    assert "profiles/slurm/nodes.yaml: machine is '(edit profiles/slurm/nodes.yaml)'; allowed: auto, or" in output


def test_wrong_contents_end_in_a_sentence(project):
    contents = project / "report/contents.yaml"
    before = contents.read_text()
    edit(contents, "script: kernel_shares", "script: cooldown")
    assert "figures.kernel_shares.script is 'cooldown'; allowed" in refused(project)
    contents.write_text(before)


@pytest.mark.slow
def test_a_missing_configuration_is_named(project):
    config = project / "config.yaml"
    before = config.read_text()
    config.unlink()
    assert "config.yaml: No such file" in refused(project)
    config.write_text(before)


@pytest.mark.slow
def test_a_model_that_cannot_be_called_is_named_before_any_job_begins(project):
    output = snakemake(project, "end_to_end", "--config", "model=tests.support.raising_model:LM", check=False)
    assert "--config: model 'tests.support.raising_model:LM' cannot be loaded: RuntimeError: of itself" in output
    assert not list((project / "results").rglob("*.*"))
    shutil.rmtree(project / "results", ignore_errors=True)


def test_snakemake_runs_in_the_projects_folder(tmp_path):
    output = snakemake(tmp_path, "-s", str(ROOT / "Snakefile"), check=False)
    assert f"snakemake runs in {tmp_path}; allowed: the project's folder, {ROOT}" in output
    assert not (tmp_path / "results").exists()


def test_a_dry_run_says_what_another_machine_measures_and_can_hold(tmp_path):
    folder = copy_project(tmp_path)
    copy_files(ROOT, folder, ["config.yaml"])
    own = "sizes={mine: {d_model: 64, d_ff: 128, num_layers: 1, num_heads: 2}}"  # numbers, as in a file
    output = snakemake(folder, "-n", "attention", "fsdp", "--config", "machine=2xRTX4090", own)
    title, table = (
        "2 x NVIDIA GeForce RTX 4090, 25.8 GB: cells by whether they fit into its memory",
        "2.7B: 2 of 2 (from 33 GB)",
    )
    assert output.count(title) == output.count(table) == 1
    assert re.search(r"^attention +36 +4 .*sequence 16384: 4 of 8", output, re.M)
    assert not re.search("^(end_to_end|flash) ", output, re.M)
    output = snakemake(folder, "-n", "on_4_gpus", "--config", "machine=4 x H200")
    jobs = set(re.findall(r"Measuring (\S+)", output))
    assert {"all_reduce/all-nccl-4_processes", "fsdp/largest_compiled-4_processes"} <= jobs
    assert all(job.endswith("-4_processes") and "gloo" not in job for job in jobs)
    output = snakemake(folder, "-n", "on_4_gpus", "--config", "machine=H200", check=False)
    assert "it needs 4 GPUs, but 1 is visible" in output
