"""The command `cs336-systems`."""

import os
import signal
import subprocess
import sys

import pytest

from cs336_systems.__main__ import MODULES, TARGETS, main
from tests.samples import ROOT

COMMAND = [sys.executable, "-m", "cs336_systems"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process; its exit status, and what it prints to stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["cs336-systems", *arguments])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    ignored = signal.getsignal(signal.SIGPIPE)
    yield run
    signal.signal(signal.SIGPIPE, ignored)


def test_help_names_every_command(run):
    _, stdout, _ = run("--help")
    listed = [line.split()[0] for line in stdout.splitlines() if line.startswith("  ")]
    assert listed == [*TARGETS, *MODULES]
    status, stdout, _ = run("measure", "--help")
    assert not status
    assert "NAME is one of accumulation, " in stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reprot"], "the command is 'reprot'; allowed: report, plan, "),
        (["measure"], "measure: the experiment is ''; allowed: accumulation, "),
        (["measure", "nothing"], "measure: the experiment is 'nothing'; allowed: accumulation, "),
        (["fit", "--sise", "2.7B"], "fit: Unrecognized options: --sise, 2.7B; allowed: --size {None}|STR"),
        (["fit", "--gpus", "2.5"], "fit: --gpus is '2.5'; allowed: whole numbers"),
        (["fit", "--price", "2,50"], "fit: --price is '2,50'; allowed: FLOAT"),
        (["fit", "--precision", "BF16"], "fit: --precision is 'BF16'; allowed: 'fp32', 'bf16'"),
        (["fit", "extra"], "fit: Unrecognized options: extra; `cs336-systems fit --help` lists what is allowed"),
        (
            ["plan", "--config", "scale=quick", "writeup"],
            "--config is followed by 'writeup'; allowed: KEY=VALUE; targets",
        ),
        (["plan", "--configfile", "nosuch.yaml"], "nosuch.yaml: No such file or directory"),
        (["report", "--configfile", "README.md"], "README.md"),
        (["measure", "flash", "--d", "nine"], "measure flash: --d is 'nine'; allowed: --d [INT "),
    ],
)
def test_what_there_is_not_gets_one_sentence(run, arguments, sentence):
    status, _, stderr = run(*arguments)
    assert status == 2
    assert stderr.removeprefix("cs336-systems").lstrip(": ").startswith(sentence)
    assert stderr.count("\n") == 1


def test_a_module_of_an_experiment_is_no_command():
    """As it was once, which would now end without a word."""
    old = [sys.executable, "-m", "cs336_systems.benchmarks.accumulation", "--device", "cpu"]
    ended = subprocess.run(old, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("cs336_systems.benchmarks.accumulation has no command line; allowed: python -m ")


def test_a_report_needs_a_clone(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence = "cs336-systems: this folder has no Snakefile; allowed: a clone of cs336-systems\n"
    assert run("card") == (2, "", sentence)


def test_an_unknown_option_of_snakemake_gets_one_sentence():
    command = [*COMMAND, "plan", "--machine", "H200"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "cs336-systems: unrecognized arguments: --machine; --help lists what is allowed\n"


def test_report_makes_only_the_targets_that_it_is_given():
    ended = subprocess.run([*COMMAND, "report", "metrics", "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Error: the target is 'metrics'; allowed: " in ended.stdout + ended.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys
from cs336_systems.__main__ import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "snakemake.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["cs336-systems", "plan"]
main()
"""


def test_ctrl_c_while_snakemake_is_imported_ends_in_one_sentence():
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == "cs336-systems: ended by Ctrl-C\n"


def test_a_command_has_its_own_options(run):
    assert "--context" in run("fit", "--help")[1]
    assert run("fit", "--size", "huge")[2].startswith("cs336-systems fit: size")
    assert "--additions" in run("measure", "accumulation", "--help")[1]
    head = f"{sys.executable} -m cs336_systems fit --size nano | head -n 1"
    first = subprocess.run(head, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.stdout.startswith("Yes: ")
    assert not first.stderr


def measure_mine(folder):
    """Run the command in a folder, to measure mine.py in it."""
    measure = ["measure", "flash", "--sequence", "16", "--d", "16", "--implementation", "mine=mine:attention"]
    command = [sys.executable, "-P", "-c", "from cs336_systems.__main__ import main; main()", *measure]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_ctrl_c_ends_a_command_in_one_sentence(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def attention(q, k, v, is_causal=False): os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = measure_mine(tmp_path)
    assert ended.stderr == "cs336-systems: ended by Ctrl-C\n"
    assert ended.returncode == 128 + signal.SIGINT


def test_modules_of_the_folder_are_found(tmp_path):
    """As by `python -m`, although a script's path begins with its own folder, as here because of -P."""
    (tmp_path / "mine.py").touch()
    ended = measure_mine(tmp_path)
    assert ended.stderr == "flash: mine=mine:attention cannot be loaded: mine has no 'attention'\n"


def test_a_missing_package_is_named_with_the_extra(run, monkeypatch):
    """As after `pip install .`, which installs only what the library needs."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    sentence = "cs336-systems: pandas is not installed; run pip install 'cs336-systems[report]'\n"
    assert run("fit", "--size", "small") == (2, "", sentence)
