"""Bad configuration ends in one sentence, before anything runs."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from tests.workflow.project import ROOT, SNAKEMAKE, copy_files, copy_project, edit, environment, snakemake

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project. What a test changes, it changes back."""
    return copy_project(tmp_path_factory.mktemp("project"))


def refused(folder, *arguments):
    """Snakemake's output before it ends without running anything."""
    output = snakemake(folder, *arguments, check=False)
    assert "Traceback" not in output
    assert 'file "' not in output.lower()
    assert not (folder / "results").is_dir()
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


NOT_MEASURED = "recorded is 'nvidia-h200', so nothing is measured; allowed: all, writeup or figures"


@pytest.mark.parametrize(
    ("target", "changes", "sentence"),
    [
        ("end_to_en", [], "the target is 'end_to_en'; allowed: end_to_end, or a file that a rule makes"),
        (
            "on_4_gpus",
            [],
            "on_4_gpus has no jobs on cpu; allowed: a machine with that many GPUs, as in --config machine='4 x H200'",
        ),
        ("accumulation", ["recorded=nvidia-h200"], NOT_MEASURED),
        ("kernel_trace", ["recorded=nvidia-h200"], NOT_MEASURED),
        ("check", [], "bundle is 'none'; allowed: the path of a bundle"),
        ("verify", [], "implementations names none; allowed: at least one, as in --config "),
        ("writeup", [], "results/cpu/raw has none of the planned results; run `snakemake` to measure them"),
        ("compare", [], "with is 'none'; allowed: a label in results/ or recorded/, or a folder"),
        # Names too long for a file, which only the system refuses.
        ("compare", [f"with={'x' * 300}"], f"no results are named '{'x' * 60}'; allowed: "),
        ("verify", [f"students={'x' * 300}"], f"--config: students is '{'x' * 300}'; allowed: none, or a folder with "),
    ],
)
def test_what_snakemake_cannot_make_ends_in_a_sentence(project, target, changes, sentence):
    *_, last = refused(project, "-n", target, *(["--config"] * bool(changes)), *changes).splitlines()
    assert f"Error: {sentence}" in last


def test_no_cores_are_refused(project):
    assert "Error: --cores is 0; allowed: a number from 1, or all" in refused(project, "--cores", "0")


def test_a_file_in_the_place_of_a_folder_is_named(project):
    (project / "results").write_text("mine")
    assert "Error: results is not a folder that this user can write" in refused(project)
    (project / "results").unlink()
    (project / "results").symlink_to("/proc")  # root may write here by its mode, but no file can be made
    assert "Error: results is not a folder that this user can write" in snakemake(project, "-n", check=False)
    (project / "results").unlink()
    (project / "results/cpu").mkdir(parents=True)
    (project / "results/cpu/logs").write_text("mine")
    assert "Error: results/cpu/logs is not a folder that this user can write" in snakemake(project, "-n", check=False)
    shutil.rmtree(project / "results")


@pytest.mark.slow
def test_a_model_that_cannot_be_called_is_named_before_any_job_begins(project):
    output = snakemake(project, "end_to_end", "--config", "model=tests.support.raising_model:LM", check=False)
    assert "Error: --config: model 'tests.support.raising_model:LM' cannot be loaded: RuntimeError: of itself" in output
    assert 'file "' not in output.lower()
    assert not list((project / "results").rglob("*.*"))
    shutil.rmtree(project / "results", ignore_errors=True)


@pytest.mark.slow
def test_a_second_run_and_ctrl_c_during_the_tests_of_the_code_end_in_a_sentence(tmp_path):
    folder = copy_project(tmp_path)
    (folder / "rules/correctness.sh").write_text("#!/bin/sh\nsleep 600\n")
    options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([*SNAKEMAKE, "measurements"], cwd=folder, env=environment(folder), **options) as running:
        while "Testing the code" not in running.stderr.readline():
            pass
        second = snakemake(folder, "measurements", check=False)
        assert "Error: another run is working in this folder; allowed: one at a time. " in second
        os.killpg(running.pid, signal.SIGINT)
        assert running.stderr.read() == "The run was ended by Ctrl-C, before anything was measured or made.\n"
    assert not list(folder.glob(".snakemake/locks/*"))


def test_head_ends_a_dry_run_without_a_word(project):
    head = f"{' '.join(SNAKEMAKE)} -n 2>&1 | head -n 1"
    first = subprocess.run(head, shell=True, cwd=project, env=environment(project), capture_output=True, text=True)
    assert (first.stdout.count("\n"), first.stderr) == (1, "")


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
        "2 x NVIDIA GeForce RTX 4090, 25.8 GB: number of cells that fit into its memory",
        "2.7B: 2 of 2 (from 35 GB)",
    )
    assert output.count(title) == output.count(table) == 1
    assert re.search(r"^attention +36 +4 .*sequence 16384: 4 of 8", output, re.M)
    assert not re.search("^(end_to_end|flash) ", output, re.M)
    assert re.search(r"^CPU: 18 cells, about 1 min on two", snakemake(folder, "accumulation", "-n", "-q"), re.M)
    output = snakemake(folder, "-n", "on_4_gpus", "--config", "machine=4 x H200")
    jobs = set(re.findall(r"Measuring (\S+)", output))
    assert {"all_reduce/all-nccl-4_processes", "fsdp/largest_compiled-4_processes"} <= jobs
    assert all(job.endswith("-4_processes") and "gloo" not in job for job in jobs)
    output = snakemake(folder, "-n", "on_4_gpus", "--config", "machine=H200", check=False)
    assert "it needs 4 GPUs, but 1 is visible" in output
