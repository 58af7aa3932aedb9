"""The command `cs336-systems`."""

import subprocess
import sys

import pytest

from cs336_systems.__main__ import MODULES, TARGETS
from tests.samples import ROOT


def run(*arguments, folder=ROOT):
    command = [sys.executable, "-m", "cs336_systems", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_help_names_every_command():
    listed = [line.split()[0] for line in run("--help").stdout.splitlines() if line.startswith("  ")]
    assert listed == [*TARGETS, *MODULES, "measure"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reprot"], "there is no command 'reprot'; allowed: report, plan, "),
        (["measure"], "measure needs the name of an experiment; allowed: accumulation, "),
        (["measure", "nothing"], "measure needs the name of an experiment; allowed: accumulation, "),
    ],
)
def test_what_there_is_not_gets_one_sentence(arguments, sentence):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"cs336-systems: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_report_needs_a_clone(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run("card", folder=tmp_path).stderr == (
        "cs336-systems: there is no Snakefile in this folder; allowed: a clone of cs336-systems\n"
    )


def test_a_command_has_its_own_options():
    assert "--context" in run("fit", "--help").stdout
    assert run("fit", "--size", "huge").stderr.startswith("fit: size")
    measured = run("measure", "accumulation", "--additions", "10", "--device", "cpu")
    assert measured.returncode == 0, measured.stderr
    assert "sum" in measured.stdout
