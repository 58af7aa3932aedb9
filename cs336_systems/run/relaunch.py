"""Launch a job and supervise it: keep its measured cells in any case, and end it if it hangs.

Launch: python -m cs336_systems.run.relaunch --timeout 1200 python -m cs336_systems.benchmarks attention --output x.csv

If memory runs out in a cell, so that the kernel kills the job or a rank ends while others wait for it, the job is
launched again for the next cell; the cell is recorded as out of memory. After any other end the job has failed, with a
sentence that says how. Its measurements stay in a file, and the same command with the same code on the same machine
continues from there.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from cs336_systems.lifeline import RUN, end_members, end_with_the_run, this_run
from cs336_systems.record.machine import detect
from cs336_systems.record.measurement import WALL, WHOLE_CELL, Measurement, summarize
from cs336_systems.run.failure import describe_end
from cs336_systems.run.kept_cells import KEPT, add_cell, cell_under_way, measured_cells, out_of_memory, start_keeping
from cs336_systems.run.warm import WARM, Forked

INTERVAL_S = 1.0
KERNEL_EVENTS = Path("/proc/vmstat")
MESSAGE = "the kernel killed the process, since the host's memory had run out"
BAD_INPUT = 2
"""Exit status of a command that has already reported an error in its arguments."""


def relaunch(command: Sequence[str], kept: Path, timeout: float, code: str = "") -> int:
    """Run a job until it has measured or lost each of its cells, or has failed; return its exit status.

    Args:
        command: the command that measures it.
        kept: file of its measured cells; removed when all of them are in their final place.
        timeout: maximum seconds per cell, and before the first one.
        code: digest of the code that determines the measurements.
    """
    if cells := start_keeping(kept, launch_digest(command, code)):
        print(f"Cells kept from an earlier launch: {cells}.", file=sys.stderr)
    while True:
        kills = memory_kills()
        status, hung = launch(command, kept, timeout)
        if status == 0 and not hung:  # torchrun may report success when it is asked to end
            kept.unlink()
            return 0
        cell = cell_under_way(kept)
        # torchrun itself does not use much memory, and exits with 1 regardless of how a rank ended.
        killed = not hung and memory_kills() > kills and (status == -signal.SIGKILL or command[0] == "torchrun")
        message = MESSAGE if killed else out_of_memory(kept)
        if not message or cell is None:
            if status != BAD_INPUT:
                print(explain(status, hung, killed, timeout, kept), file=sys.stderr)
            return status if status > 0 else 1
        lost = Measurement(metric=WHOLE_CELL, status="oom", message=message)
        add_cell(kept, [lost, summarize(WALL, "s", [time.time() - kept.stat().st_mtime])])


def launch_digest(command: Sequence[str], code: str) -> str:
    """Digest of everything that determines a launch: command, code, machine and installed packages."""
    # The names of these folders are a package's name and version. Reading their files takes longer than many jobs.
    installed = sorted({folder.name for place in sys.path for folder in Path(place).glob("*-info")})
    try:
        machine = astuple(detect())
    except ValueError:  # which the job reports itself
        machine = ()
    words = [list(command), code, machine, sys.version, installed]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def launch(command: Sequence[str], kept: Path, timeout: float) -> tuple[int, bool]:
    """Run a job once; return its exit status, and whether it was ended because no cell ended in time.

    None of its processes is left in any case: ranks are in separate sessions, and may wait for each other.
    """
    run = this_run()
    # A crash in native code then reports the line of Python.
    environment = {**os.environ, KEPT: str(kept), RUN: run, "PYTHONFAULTHANDLER": "1"}
    ended, hung = threading.Event(), threading.Event()

    def end_hung_job() -> None:
        hung.set()
        end_members(run, process.pid if process else None)

    watch = threading.Thread(target=await_progress, args=(kept, timeout, ended, end_hung_job), daemon=True)
    process: subprocess.Popen[bytes] | Forked | None = None
    try:
        process = start(command, environment)
        watch.start()
        return process.wait(), hung.is_set()
    finally:
        ended.set()
        end_members(run, process.pid if process else None)


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
    """Start a job, forked from the warm process if there is one."""
    with contextlib.suppress(OSError):
        if address := environment.get(WARM):
            return Forked(address, command, environment)
    return subprocess.Popen(command, env=environment)


def await_progress(kept: Path, timeout: float, ended: threading.Event, late: Callable[[], None]) -> None:
    """Call `late` if the file of kept cells does not change for longer than the timeout before the job has ended."""
    size, since = kept.stat().st_size, time.monotonic()
    while not ended.wait(min(INTERVAL_S, timeout / 2)):
        if (now := kept.stat().st_size) != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            late()
            return


def explain(status: int, hung: bool, killed: bool, timeout: float, kept: Path) -> str:
    """Explain how a job failed, in which cell, and which cells are kept."""
    cells, cell = len(measured_cells(kept)), cell_under_way(kept)
    if hung:
        how = f"The job was ended because it took longer than {timeout:g} s (cell_timeout in config.yaml)"
    elif killed:
        how = f"The job has failed: {MESSAGE}"
    else:
        how = f"The job {describe_end(status)}"
    if cell is not None:
        return f"{how}, in cell {cells + 1}{cell and f' ({cell})'}; a repeated run starts with that cell."
    if cells:
        return f"{how}, after cell {cells}; a repeated run continues after that cell."
    return f"{how}, before its first cell began."


def memory_kills() -> int:
    """Number of processes that the OOM killer has ended since boot; 0 if the kernel does not report it."""
    try:
        counted = re.search(r"^oom_kill (\d+)$", KERNEL_EVENTS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        return 0
    return int(counted[1]) if counted else 0


def main(arguments: Sequence[str]) -> int:
    """Run the job of a command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m cs336_systems.run.relaunch")
    parser.add_argument("--timeout", type=float, required=True, help="seconds that one cell may take")
    parser.add_argument("--kept", type=Path, help="file for the measured cells; without it, none are kept")
    parser.add_argument("--code", default="", help="digest of the code that determines the measurements")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command that measures the job")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return relaunch(options.command, options.kept or Path(folder, "cells.jsonl"), options.timeout, options.code)


if __name__ == "__main__":
    # The job ends when this process does, and this one when the run does.
    for asked_to_end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked_to_end, lambda number, _: sys.exit(128 + number))
    end_with_the_run(lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
