"""The tables' stage: what it says of a file that no measurement wrote."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.samples import ROOT

PROGRAM = """
import sys
from cs336_systems.plan import make_plan
from scripts.stages.tables import merge
from scripts.tools.log import log_to
from scripts.tools.processes import in_processes
from tests.samples import config
log, csv, output = sys.argv[1:]
plan = make_plan(config(machine="cpu"))
with log_to(log):
    in_processes(merge, [{"experiment": "accumulation", "csvs": [csv], "output": output, "plan": plan}], 1)
"""


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_file_is_one_sentence(tmp_path, cut):
    source = next((ROOT / "tests/samples/cpu/raw/accumulation").glob("*.csv"))
    content = source.read_bytes()
    csv, log = tmp_path / "all.csv", tmp_path / "log"
    csv.write_bytes(content[:-20] if cut else content)
    csv.with_name("all.csv.sha256").write_text(f"{'0' * 64}  all.csv\n")
    program = [sys.executable, "-c", PROGRAM, str(log), str(csv), str(tmp_path / "table.csv")]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    assert log.read_text().startswith(f"{csv}: changed since it was written: its SHA-256 is ")
    assert log.read_text().count("\n") == 1


ENDLESS = """
import sys, time
from scripts.tools.log import log_to
from scripts.tools.processes import in_processes
def wait(seconds):
    print(flush=True)
    time.sleep(seconds)
with log_to(sys.argv[1]):
    in_processes(wait, 4 * [{"seconds": 600}], 2)
"""


def test_ctrl_c_ends_all_processes_in_a_sentence(tmp_path):
    log = tmp_path / "log"
    program = [sys.executable, "-c", ENDLESS, str(log)]
    with subprocess.Popen(program, cwd=ROOT, start_new_session=True) as running:
        while not (log.exists() and log.read_text() == "\n\n"):  # both processes wait
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(timeout=30) == 1
    assert log.read_text() == "\n\nended by Ctrl-C\n"
