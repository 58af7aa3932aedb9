"""A run leaves processes alone that are not its own."""

import os
import shlex
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from tests.workflow.project import snakemake, start

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

MODULE = "cs336_systems/benchmarks/autocast_dtypes.py"


@pytest.fixture
def strangers(project):
    """Processes in the project's folder that are not a run's: a measurement typed by hand, a loop around one, tmux."""
    (project / MODULE).write_text("import time\n\ntime.sleep(1000)\n")  # needs no core
    job = "cs336_systems.benchmarks autocast_dtypes"
    long = f"{sys.executable} -m {job} --autocast bf16 --output results/cpu/raw/autocast_dtypes/mine.csv"
    others = [
        start(["nice", *shlex.split(long)], project),
        start(["bash", "-c", f"while true; do sleep 60; done; {long}"], project),
    ]
    tmux = ["tmux", "-L", f"test-{os.getpid()}"]
    if shutil.which("tmux"):
        subprocess.run([*tmux, "new-session", "-d", "-s", long.replace(".", "_")], cwd=project, check=True)
        ask = [*tmux, "display-message", "-p", "#{pid}"]
        server = subprocess.run(ask, cwd=project, capture_output=True, text=True, check=True).stdout
        others.append(psutil.Process(int(server)))
    time.sleep(1)
    yield others
    if shutil.which("tmux"):
        subprocess.run([*tmux, "kill-server"], check=False)
    for process in others[:2]:
        process.kill()
        process.wait()


def test_processes_of_others_survive(project, strangers):
    (project / "results/cpu/raw/accumulation/all.csv").unlink()
    snakemake(project, "accumulation")
    assert all(map(survives, strangers))


def survives(process):
    return process.poll() is None if hasattr(process, "poll") else process.is_running()
