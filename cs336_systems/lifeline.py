"""A run's jobs end when the run does, and ranks when their launcher does, even if these were killed.

No orphan disturbs the timings of the next run.
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil

RUN = "CS336_SYSTEMS_RUN"
"""Environment variable that identifies the run a process belongs to: host, process id and start time."""
INTERVAL_S = 1.0


def announce_run() -> None:
    """Make this process the run that the processes it starts belong to."""
    os.environ[RUN] = f"{socket.gethostname()} {os.getpid()} {start_of(os.getpid())}"


def end_with_the_run() -> None:
    """End this process at once when the run that started it is gone; does nothing outside a run.

    Jobs that a cluster started on another host belong to the cluster, which ends them itself.
    """
    host, _, identity = os.environ.get(RUN, "").partition(" ")
    if host == socket.gethostname():
        pid, _, start = identity.partition(" ")
        _end_with(int(pid), start)


def end_with_the_launcher() -> None:
    """End this process at once when the process that started it is gone, such as a torchrun that was killed."""
    pid = os.getppid()
    if start := start_of(pid):
        _end_with(pid, start)


def start_of(pid: int) -> str | None:
    """When a process started, to tell it from a later one with the same id; None if it has ended."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # State, and ticks since the boot, which unlike a time of day stay when the clock is set: proc_pid_stat(5).
        state, ticks = fields[0], fields[19]
        return None if state in "ZX" else ticks
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _end_with(pid: int, start: str) -> None:
    threading.Thread(target=_watch, args=(pid, start), daemon=True).start()


def _watch(pid: int, start: str) -> None:
    while start_of(pid) == start:
        time.sleep(INTERVAL_S)
    os._exit(1)  # Nobody is left to report to.
