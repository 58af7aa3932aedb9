"""Explanations of failed commands that their logs do not contain."""

import os
import shutil
import subprocess
import sys

import pytest

from cs336_systems.run.failure import explain, full_disks
from tests.samples import ROOT

TMPFS = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-ec"]


def test_an_empty_log_is_named_and_so_is_a_signal(tmp_path):
    log = tmp_path / "job.log"
    (sentence,) = explain(143, log)
    assert sentence.startswith("the command was ended by SIGTERM (by hand or by a job scheduler")
    assert sentence.endswith(f", and its log, {log}, is empty")
    log.touch()
    assert explain(1, log)[0] == f"the command ended with exit status 1, and its log, {log}, is empty"
    log.write_text("KeyError: 'lost'\n")
    assert explain(137, log)[0].endswith(f"; its log is {log}")
    assert not [sentence for sentence in explain(1, log) if str(log) in sentence]


def test_a_full_disk_is_named(tmp_path):
    assert full_disks([tmp_path, tmp_path / "absent"]) == []
    for options, name, fill in (
        ("size=2m", "small", "head -c 2m /dev/zero > small/full || true"),
        ("nr_inodes=2", "few", "touch few/1; touch few/2 2> /dev/null || true"),
    ):
        (tmp_path / name).mkdir()
        asked = f"'{sys.executable}' -m cs336_systems.run.failure 1 {name}/logs/x"
        script = f"mount -t tmpfs -o {options} none {name}; {fill}; {asked}"
        prefix = TMPFS if shutil.which("unshare") else ["bash", "-ec"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*prefix, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        if "mount" in done.stderr or "unshare" in done.stderr:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        assert done.returncode == 1
        assert f"The disk of {name}/logs is full: " in done.stderr
        assert f"and its log, {name}/logs/x, is empty.\n" in done.stderr
