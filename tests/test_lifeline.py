"""Jobs exit with their run; a run never touches another run's processes or locks."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cs336_systems.lifeline import RUN, start_of
from cs336_systems.run import lock as run_lock
from tests.samples import ROOT

JOB = """
import time
from cs336_systems.lifeline import end_with_the_run
end_with_the_run()
print("up", flush=True)
time.sleep(SECONDS)
print("done")
"""
RUN_OF_A_JOB = """
import subprocess, sys
from cs336_systems.lifeline import announce_run
announce_run()
subprocess.run(["bash", "-c", f"{sys.executable} {sys.argv[1]}; true"])
"""


@pytest.fixture
def run(tmp_path):
    """A run whose job has begun, behind a shell as Snakemake's; both are gone after the test."""
    job = tmp_path / "job.py"
    job.write_text(JOB.replace("SECONDS", "60"))
    environment = {**os.environ, RUN: "", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", RUN_OF_A_JOB, job], env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    family = psutil.Process(process.pid).children(recursive=True)
    yield process, family
    for member in [process, *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def test_a_job_dies_with_a_killed_run(run):
    process, family = run
    assert len(family) >= 1
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_job_lives_as_long_as_its_run(run):
    _, family = run
    time.sleep(2.5)  # two looks
    assert all(member.is_running() for member in family)


@pytest.mark.parametrize("announced", ["", "elsewhere 1 0", f"{socket.gethostname()} abc"])
def test_without_a_run_on_this_host_a_process_goes_on(announced):
    environment = {**os.environ, RUN: announced}
    code = JOB.replace("SECONDS", "1.5")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "up\ndone\n"


def test_a_process_that_has_ended_has_no_start():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    start = start_of(child.pid)
    assert start not in (None, start_of(os.getpid()))
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None  # not even before anybody has waited for it
    child.wait()
    assert start_of(child.pid) != start  # From now on the id may be another process's.


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A lock and the note of its owner, a process that has ended; a function that changes the note."""
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("results/cpu/writeup.pdf\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (temporary / "cache").touch()
    run_lock.note_owner([lock], temporary)
    note = json.loads(run_lock.OWNER.read_text())

    def owner(**changes):
        for folder in (temporary, run_lock.OWNER.parent):
            (folder / run_lock.OWNER.name).write_text(json.dumps(note | {"start": "0"} | changes))

    owner()
    return lock, owner, note


def test_the_lock_and_temporary_files_of_a_dead_run_are_removed(lock):
    path, _, note = lock
    assert run_lock.clear_after_dead_owner() == f"Removed the lock of a run that was killed (process {note['pid']})."
    assert not path.exists()
    assert not Path(note["temporary"]).exists()
    assert run_lock.clear_after_dead_owner() == ""


def test_a_lock_whose_owner_may_live_is_left_alone(lock):
    path, owner, note = lock
    for changes in (
        {"start": note["start"]},  # this process, which lives
        {"where": note["where"] + "0"},  # another host, boot, PID namespace or user
    ):
        owner(**changes)
        assert run_lock.clear_after_dead_owner() == ""
        assert path.exists()
        assert Path(note["temporary"]).exists()


@pytest.mark.parametrize("noted", [[[1, 2]], []])
def test_another_lock_of_the_same_name_and_a_file_that_is_no_lock_are_left_alone(lock, tmp_path, noted):
    path, owner, _ = lock
    thesis = tmp_path / "thesis.tex"
    thesis.touch()
    owner(locks={str(thesis): run_lock._identity(thesis)} | dict(zip([str(path)], noted, strict=False)))
    assert run_lock.clear_after_dead_owner() == ""
    assert path.exists()
    assert thesis.exists()


@pytest.mark.parametrize("kind", ["no note", "a link", "another's note"])
def test_a_folder_is_removed_only_if_it_has_the_note(lock, tmp_path, kind):
    _, owner, note = lock
    home = tmp_path / "home"
    if kind == "a link":
        home.symlink_to(note["temporary"])
    else:
        home.mkdir()
    if kind == "another's note":
        (home / run_lock.OWNER.name).write_text(run_lock.OWNER.read_text())
    owner(temporary=str(home))
    assert "Removed the lock" in run_lock.clear_after_dead_owner()
    assert home.exists()
    assert Path(note["temporary"]).exists()


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"pid": "self"}', "\xff", "null"])
def test_a_note_that_says_nothing_removes_nothing(lock, content):
    path, _, note = lock
    run_lock.OWNER.unlink()
    if content is not None:
        run_lock.OWNER.write_text(content, encoding="latin-1")
    assert run_lock.clear_after_dead_owner() == ""
    assert path.exists()
    assert Path(note["temporary"]).exists()
