"""A job is watched over: what it has measured stays however it ends, the end has a reason, and a hang has one too."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cs336_systems.lifeline import RUN, start_of, this_run
from cs336_systems.record.measurement import summarize
from cs336_systems.run import relaunch
from cs336_systems.run.kept_cells import add_cell, cell_under_way, measured_cells, start_keeping
from tests.samples import ROOT
from tests.workflow.project import wait_for

JOB = """
import ctypes, os, pathlib, signal, sys
from cs336_systems.run.kept_cells import keep, kept_cells, say_out_of_memory
from cs336_systems.record.measurement import summarize

counter, launches, *fates = sys.argv[1:]
with open(launches, "a") as file:
    file.write("launched\\n")

def end(fate):
    if fate == "out of memory":
        pathlib.Path(counter).write_text(f"pgfault 1\\noom_kill {os.getpid()}\\n")
    if fate in ("out of memory", "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "segfault":
        ctypes.string_at(0)
    if fate == "abort":
        os.abort()
    if fate == "out of a rank's memory":
        say_out_of_memory("rank 1 ran out of memory")
        sys.exit(1)
    if fate == "bug":
        raise KeyError("lost")
    if fate == "refuses":
        sys.exit(2)

def measure(fates):
    for number, fate in enumerate(fates):
        if fate != "ok":
            end(fate)
        yield number, [summarize("step", "ms", [1.0])]

if fates[0] == "early":
    end(fates[1])
kept = kept_cells()
left = fates[len(kept):]
list(keep(measure(left), [f"number={number}" for number in range(len(kept), len(fates))]))
print([[measurement.status for measurement in cell][0] for cell in kept_cells()])
"""


@pytest.fixture
def job(tmp_path, monkeypatch, capfd):
    """A function that runs a job whose cells have the given fates: its status, launches and what it printed."""
    counter, launches, kept = tmp_path / "vmstat", tmp_path / "launches", tmp_path / "kept/job.jsonl"
    counter.write_text("pgfault 1\noom_kill 0\n")
    monkeypatch.setattr(relaunch, "KERNEL_EVENTS", counter)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*fates, command=None):
        launches.write_text("")
        command = command or [sys.executable, "-c", JOB, str(counter), str(launches), *fates]
        status = relaunch.relaunch(command, kept, timeout=60)
        return status, launches.read_text().count("launched"), capfd.readouterr()

    run.kept = kept
    return run


@pytest.mark.parametrize(
    ("fates", "launches", "outcomes"),
    [
        (["ok", "ok"], 1, ["ok", "ok"]),
        (["ok", "out of memory", "ok", "out of memory"], 3, ["ok", "oom", "ok", "oom"]),
        (["out of a rank's memory", "ok"], 2, ["oom", "ok"]),
    ],
)
def test_a_cell_that_takes_all_memory_costs_no_other(job, fates, launches, outcomes):
    status, launched, printed = job(*fates)
    assert (status, launched, printed.out) == (0, launches, f"{outcomes}\n")
    assert not job.kept.exists()


@pytest.mark.parametrize(
    ("fates", "reason"),
    [
        (["ok", "killed"], "was ended by SIGKILL (by hand, by a job scheduler, or by the OOM killer because"),
        (["ok", "segfault"], "was ended by SIGSEGV (a crash in native code"),
        (["ok", "abort"], "was ended by SIGABRT ("),
        (["ok", "bug"], "ended with exit status 1"),
    ],
)
def test_an_end_has_its_reason_and_keeps_the_cells_before_it(job, fates, reason):
    status, launched, printed = job(*fates)
    assert (status, launched) == (1, 1)
    assert printed.err.count(f"The job {reason}") == 1
    assert "in cell 2 (number=1); a repeated run starts with that cell.\n" in printed.err
    assert len(measured_cells(job.kept)) == 1


@pytest.mark.parametrize(
    ("fate", "sentence"),
    [
        ("out of memory", f"The job has failed: {relaunch.MESSAGE}, before its first cell began.\n"),
        ("killed", "a memory limit was reached), before its first cell began.\n"),
        ("refuses", ""),  # has said why
    ],
)
def test_an_end_before_the_first_cell_has_its_reason(job, fate, sentence):
    status, launched, printed = job("early", fate)
    assert (status, launched) == (2 if fate == "refuses" else 1, 1)
    assert printed.err.endswith(sentence) if sentence else printed.err == ""


def test_an_end_between_cells_keeps_them(job):
    """As when the disk is full where the CSV is written."""
    script = "from cs336_systems.run.kept_cells import keep; list(keep(iter([(0, [])]), ['number=0'])); raise OSError"
    status, _, printed = job(command=[sys.executable, "-c", script])
    assert status == 1
    assert printed.err.endswith("status 1, after cell 1; a repeated run continues after that cell.\n")


def test_a_crash_says_in_which_line_of_python(job):
    assert 'File "<string>", line 16 in end' in job("segfault")[-1].err


def test_a_repeated_run_goes_on_with_the_cell_that_crashed(job, tmp_path, monkeypatch):
    script = tmp_path / "job.py"
    script.write_text("import sys\nfrom pathlib import Path\nsys.argv[3:] = Path('fates').read_text().split()\n" + JOB)
    command = [sys.executable, str(script), str(tmp_path / "vmstat"), str(tmp_path / "launches")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fates").write_text("ok ok bug ok")
    assert job(command=command)[0] == 1
    with job.kept.open("a") as kept:
        kept.write('[{"metric": "st')  # a disk that was full
    before = job.kept.read_text().splitlines()
    (tmp_path / "fates").write_text("bug bug ok ok")
    status, _, printed = job(command=command)
    assert (status, printed.out) == (0, "['ok', 'ok', 'ok', 'ok']\n")
    assert "Cells kept from an earlier launch: 2.\n" in printed.err
    assert len(before) == 1 + 2 * 2 + 1 + 1


def test_cells_of_another_launch_are_not_kept(tmp_path):
    kept = tmp_path / "cells.jsonl"
    for launched, cells in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        assert start_keeping(kept, launched) == cells
        add_cell(kept, [summarize("sum", "", [10.0])] * (2 - cells))
    kept.write_text("\0\0\0\n" + kept.read_text())
    assert start_keeping(kept, "b") == 0
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [{"launched": "b"}]


def test_what_decides_what_is_measured_tells_launches_apart():
    digests = {relaunch.launch_digest(["job", size], code) for size in ("1", "2") for code in ("a", "b")}
    assert len(digests) == 4
    assert relaunch.launch_digest(["job", "1"], "a") in digests


HANGS = """
import ctypes, os, signal, subprocess, sys, time
from cs336_systems.run.kept_cells import keep
if sys.argv[1] == "launcher":  # as torchrun: what hangs is in a session of its own, and who is asked to end is well
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    subprocess.run([sys.executable, "-c", *sys.orig_argv[2:3], "rank", sys.argv[2]], start_new_session=True)
def measure():
    yield 0, []
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    ctypes.PyDLL(None).sleep(1000)  # no other thread of Python runs meanwhile
list(keep(measure(), ["number=0", "number=1"]))
"""


@pytest.mark.slow
def test_a_job_that_hangs_is_ended_with_all_its_processes_and_no_other(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("cs336_systems.lifeline.GRACE_S", 0.5)
    kept = tmp_path / "cells.jsonl"
    another = subprocess.Popen(["sleep", "60"], env={**os.environ, RUN: this_run() + "0"})
    command = [sys.executable, "-c", HANGS, "launcher", str(tmp_path / "pid")]
    begun = time.monotonic()
    assert relaunch.relaunch(command, kept, timeout=10) == 1
    assert time.monotonic() - begun < 60
    assert start_of(int((tmp_path / "pid").read_text())) is None
    assert another.poll() is None
    another.kill()
    another.wait()
    sentence = "The job was ended because it took longer than 10 s (cell_timeout in config.yaml), in cell 2 (number=1)"
    assert sentence in capfd.readouterr().err
    assert (len(measured_cells(kept)), cell_under_way(kept)) == (1, "number=1")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_nothing_of_a_job_outlives_its_watch(tmp_path, number):
    """As when a scheduler or Ctrl-C ends it: also what ignores that."""
    command = [sys.executable, "-m", "cs336_systems.run.relaunch", "--timeout", "60", "--kept", str(tmp_path / "cells")]
    command += [sys.executable, "-c", HANGS, "launcher", str(tmp_path / "pid")]
    watch = subprocess.Popen(command, cwd=ROOT)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    watch.send_signal(number)
    assert watch.wait(timeout=60) == 128 + number
    assert start_of(int((tmp_path / "pid").read_text())) is None
