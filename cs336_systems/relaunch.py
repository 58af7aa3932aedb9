"""Launch a job, and launch it again after each cell in which the kernel kills it because memory has run out.

Launch: python -m cs336_systems.relaunch python -m cs336_systems.benchmarks.attention --sequence 8192 --output rows.csv

What it has measured by then stays, that cell is one that ran out of memory, and the job goes on with the next one.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cs336_systems.kept_cells import KEPT, add_cell
from cs336_systems.lifeline import announce_run, end_with_the_run
from cs336_systems.measure.measurement import WALL, WHOLE_CELL, Measurement, summarize

KERNEL_EVENTS = Path("/proc/vmstat")
MESSAGE = "the kernel killed the process, since the host's memory had run out"


def relaunch(command: Sequence[str]) -> int:
    """Run a job until it has measured or lost each of its cells; returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "cells.jsonl")
        kept.touch()
        while True:
            kills, written = memory_kills(), kept.stat().st_mtime_ns
            status = subprocess.run(command, env=os.environ | {KEPT: str(kept)}, check=False).returncode
            # torchrun itself is not what takes memory, and exits with 1 whatever ended a rank.
            killed = status == -signal.SIGKILL or (status and command[0] == "torchrun")
            if not killed or memory_kills() == kills:
                return status
            if kept.stat().st_mtime_ns == written:
                print(f"{MESSAGE} before its first cell began", file=sys.stderr)
                return status
            lost = Measurement(metric=WHOLE_CELL, status="oom", message=MESSAGE)
            add_cell(kept, [lost, summarize(WALL, "s", [time.time() - kept.stat().st_mtime])])


def memory_kills() -> int:
    """Processes that the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        counted = re.search(r"^oom_kill (\d+)$", KERNEL_EVENTS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        return 0
    return int(counted[1]) if counted else 0


if __name__ == "__main__":
    end_with_the_run()
    announce_run()  # The job ends when this process does.
    sys.exit(relaunch(sys.argv[1:]))
