"""A killed run goes on where it stopped; what is not its own it leaves alone."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.workflow.project import SNAKEMAKE, rows, snakemake, start, wait_for

pytestmark = pytest.mark.workflow

JOB = "cs336_systems.benchmarks.autocast_dtypes"


@pytest.mark.slow
def test_a_killed_run_goes_on(project):
    undisturbed = rows(project / "results/cpu/raw")
    raw = project / "results/cpu/raw"
    jobs = [raw / "accumulation/all.csv", raw / "autocast_dtypes/all.csv"]
    for job in jobs:
        job.unlink()
    log = project / ".snakemake/log"
    before = set(log.iterdir())
    run = start([*SNAKEMAKE, "measurements"], project)
    wait_for(lambda: any("Finished jobid" in path.read_text() for path in set(log.iterdir()) - before))
    time.sleep(1)  # into the next job
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGKILL)
    run.wait()
    (measured,) = filter(Path.exists, jobs)
    first = measured.stat().st_mtime_ns
    assert list((project / ".snakemake/locks").iterdir())
    _, orphans = psutil.wait_procs(family, timeout=10)
    assert orphans == []
    assert "Nothing to be done" not in snakemake(project, "-n", "measurements")
    assert list((project / ".snakemake/locks").iterdir())  # a dry run touches nothing
    assert f"Removed the lock of a run that was killed (process {run.pid})." in snakemake(project, "measurements")
    assert rows(raw) == undisturbed
    assert measured.stat().st_mtime_ns == first
    assert not list(raw.rglob(".*.csv.*"))


@pytest.fixture
def strangers(project):
    """Processes in the project's folder that are not a run's: a measurement typed by hand, a loop around one, tmux."""
    (project / f"{JOB.replace('.', '/')}.py").write_text("import time\n\ntime.sleep(1000)\n")  # needs no core
    long = f"{sys.executable} -m {JOB} --autocast bf16 --output results/cpu/raw/autocast_dtypes/mine.csv"
    found = [
        start(["nice", *shlex.split(long)], project),
        start(["bash", "-c", f"while true; do sleep 60; done; {long}"], project),
    ]
    tmux = ["tmux", "-L", f"test-{os.getpid()}"]
    if shutil.which("tmux"):
        subprocess.run([*tmux, "new-session", "-d", "-s", long.replace(".", "_")], cwd=project, check=True)
        ask = [*tmux, "display-message", "-p", "#{pid}"]
        server = subprocess.run(ask, cwd=project, capture_output=True, text=True, check=True).stdout
        found.append(psutil.Process(int(server)))
    time.sleep(1)
    yield found
    if shutil.which("tmux"):
        subprocess.run([*tmux, "kill-server"], check=False)
    for process in found[:2]:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_processes_of_others_survive(project, strangers):
    (project / "results/cpu/raw/accumulation/all.csv").unlink()
    snakemake(project, "accumulation")
    assert all(map(survives, strangers))


def survives(process):
    return process.poll() is None if hasattr(process, "poll") else process.is_running()


def test_a_lock_of_unknown_owner_is_left_alone(project):
    csv = "results/cpu/raw/accumulation/all.csv"
    (project / csv).unlink()
    lock = project / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(f"{csv}\n")
    printed = snakemake(project, "accumulation", check=False)
    assert "Removed" not in printed
    assert "cannot be locked" in printed
    assert lock.read_text() == f"{csv}\n"
    assert not (project / csv).exists()
