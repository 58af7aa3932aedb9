"""Jobs that are forked of the warm process: processes of their own, with all ends that started ones have."""

import os
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest
import torch

from cs336_systems.lifeline import RUN, start_of
from cs336_systems.run import relaunch
from cs336_systems.run.kept_cells import start_keeping
from cs336_systems.run.warm import WARM
from tests.samples import ROOT
from tests.workflow.project import wait_for

JOB = """
import ctypes, os, sys, torch
print(os.environ["FATE"], sys.argv, __name__, torch.get_num_threads(), os.environ.get("RANK"), flush=True)
if os.environ["FATE"] == "hangs":
    open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
    ctypes.PyDLL(None).sleep(1000)  # no other thread of Python runs meanwhile
FATES = {"ends": lambda: None, "refuses": lambda: sys.exit(2), "raises": lambda: 1 / 0, "crashes": os.abort}
FATES[os.environ["FATE"]]()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A warm process, and the process that stands for the run that it belongs to."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "fated.py").write_text(JOB)
    run = subprocess.Popen(["sleep", "1000"])
    identity = f"{socket.gethostname()} {run.pid} {start_of(run.pid)}"
    environment = {**os.environ, RUN: identity, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "cs336_systems.run.warm", str(folder / "warm")]
    warm = subprocess.Popen(command, cwd=ROOT, env=environment)
    wait_for((folder / "warm").exists)
    yield warm, run, str(folder / "warm")
    for process in (run, warm):
        process.kill()
        process.wait()


@pytest.fixture
def launch(server, tmp_path, monkeypatch, capfd):
    """Launch a job of a fate: its status, whether it hung, and what it printed."""

    def launch(fate, *command, timeout=60.0):
        monkeypatch.setenv(WARM, server[2])
        monkeypatch.setenv("FATE", fate)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        start_keeping(tmp_path / "kept", "")
        return *relaunch.launch(
            [*command, "-m", "fated", str(tmp_path)], tmp_path / "kept", timeout
        ), capfd.readouterr()

    return launch


@pytest.mark.parametrize(
    ("fate", "status", "error"),
    [("ends", 0, ""), ("refuses", 2, ""), ("raises", 1, "ZeroDivisionError"), ("crashes", -6, "Fatal Python error")],
)
def test_a_forked_job_is_one_of_its_own(launch, tmp_path, fate, status, error):
    ended, hung, printed = launch(fate, "python")
    assert (ended, hung) == (status, False)
    assert re.match(rf"{fate} \['.*', '{tmp_path}'\] __main__ {torch.get_num_threads()} None\n", printed.out)
    assert error in printed.err


def test_ranks_are_forked_too_and_end_with_a_job_that_hangs(launch, tmp_path):
    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2")
    _, hung, printed = launch("hangs", *torchrun, timeout=8)
    ranks = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert hung
    assert len(ranks) == 2
    assert not any(map(psutil.pid_exists, ranks))
    status, _, printed = launch("ends", *torchrun)
    assert status == 0
    assert {line[-3:] for line in printed.out.splitlines()} == {"1 0", "1 1"}  # one thread for each
    status, _, printed = launch("raises", *torchrun)
    assert status == 1
    assert "ZeroDivisionError" in printed.err


def test_the_warm_process_ends_with_its_run(server):
    warm, run, _ = server
    warm.send_signal(signal.SIGINT)  # as a terminal sends it to all processes
    with pytest.raises(subprocess.TimeoutExpired):
        warm.wait(timeout=1)
    run.kill()
    run.wait()
    assert warm.wait(timeout=30) == 0
