"""A job that the kernel kills for memory: what it has measured stays, that cell says why, and the rest follows."""

import sys

import pytest

from cs336_systems import relaunch
from cs336_systems.kept_cells import KEPT, add_cell
from cs336_systems.measure.measurement import WALL, WHOLE_CELL, Measurement, summarize
from tests.samples import ROOT

JOB = """
import os, pathlib, signal, sys
from cs336_systems.kept_cells import keep, kept_cells
from cs336_systems.measure.measurement import summarize

counter, launches, *fates = sys.argv[1:]
with open(launches, "a") as file:
    file.write("launched\\n")

def end(fate):
    if fate == "killed":
        pathlib.Path(counter).write_text(f"pgfault 1\\noom_kill {os.getpid()}\\n")
    os.kill(os.getpid(), signal.SIGKILL)

def measure(fates):
    for number, fate in enumerate(fates):
        if fate != "ok":
            end(fate)
        yield number, [summarize("step", "ms", [1.0])]

if fates[0] == "early":
    end("killed")
kept = kept_cells()
list(keep(measure(fates[len(kept):])))
print([[measurement.status for measurement in cell][0] for cell in kept_cells()])
"""


@pytest.mark.parametrize(
    ("fates", "launches", "status", "outcomes"),
    [
        (["ok", "killed", "ok", "killed"], 3, 0, "['ok', 'oom', 'ok', 'oom']"),
        (["ok", "by hand"], 1, -9, ""),  # no memory was short, so the job may be launched as it is another time
        (["early"], 1, -9, ""),
    ],
)
def test_what_was_measured_before_a_kill_stays(tmp_path, monkeypatch, capfd, fates, launches, status, outcomes):
    counter, launched = tmp_path / "vmstat", tmp_path / "launches"
    counter.write_text("pgfault 1\noom_kill 0\n")
    monkeypatch.setattr(relaunch, "KERNEL_EVENTS", counter)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert relaunch.relaunch([sys.executable, "-c", JOB, str(counter), str(launched), *fates]) == status
    assert launched.read_text().count("launched") == launches
    printed = capfd.readouterr()
    assert printed.out.strip() == outcomes
    assert ("before its first cell" in printed.err) == (fates == ["early"])


def test_a_job_takes_over_what_an_earlier_launch_kept(launch, tmp_path, monkeypatch, capfd):
    kept = tmp_path / "cells.jsonl"
    add_cell(kept, [summarize("sum", "", [10.0]), summarize(WALL, "s", [1.0])])
    add_cell(kept, [Measurement(metric=WHOLE_CELL, status="oom", message="no memory"), summarize(WALL, "s", [2.0])])
    monkeypatch.setenv(KEPT, str(kept))
    first, lost, measured = launch("accumulation", "--additions", "10", "20", "30")
    assert (first["sum"].additions, first["sum"].mean) == (10, 10.0)
    assert (lost[WHOLE_CELL].additions, lost[WHOLE_CELL].message) == (20, "no memory")
    assert measured["sum"].mean == pytest.approx(0.3, rel=1e-3)
    assert len(kept.read_text().splitlines()) == 3
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "[2/3] additions=20: oom: no memory, 2.0 s"
    assert lines[1].startswith("[3/3] additions=30: ok, ")
