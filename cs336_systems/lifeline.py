"""End a run's jobs with the run, and ranks with their launcher, even if these were killed.

So no orphan process disturbs the timings of the next run.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

RUN = "CS336_SYSTEMS_RUN"
"""Environment variable that identifies a process's run: host, process id and start time."""
INTERVAL_S = 1.0
GRACE_S = 5.0
"""How long processes have to exit after SIGTERM until they are killed."""


def _end_at_once() -> None:
    os._exit(1)  # There is no parent left to report to.


def this_run() -> str:
    """The value of `RUN` for processes that belong to this run."""
    return f"{socket.gethostname()} {os.getpid()} {start_of(os.getpid())}"


def announce_run() -> None:
    """Make this process a run: processes that it starts belong to it."""
    os.environ[RUN] = this_run()


def end_with_the_run(end: Callable[[], object] = _end_at_once) -> None:
    """End this process when the run that started it is gone, immediately or as given; does nothing outside a run.

    Jobs that a cluster started on another host belong to the cluster, which ends them itself.
    """
    if identity := _run_on_this_host():
        _end_with(*identity, end)


def run_is_over() -> bool:
    """Whether the run that this process belongs to, on this host, is gone."""
    identity = _run_on_this_host()
    return identity is not None and start_of(identity[0]) != identity[1]


def _run_on_this_host() -> tuple[int, str] | None:
    """Process id and start time of the run that this process belongs to; None outside a run of this host."""
    host, _, identity = os.environ.get(RUN, "").partition(" ")
    pid, _, start = identity.partition(" ")
    return (int(pid), start) if host == socket.gethostname() and pid.isdecimal() else None


def end_members(run: str, session: int | None = None) -> None:
    """End the processes of this host that belong to a run or to a session, regardless of their parents, except this
    one.

    The environment with which they were started identifies the run's processes. They need not cooperate.
    """
    members = []
    for process in psutil.process_iter():
        # Another user's process is unreadable, and an ended one has no environment.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and (process.environ().get(RUN) == run or os.getsid(process.pid) == session):
                process.terminate()
                members.append(process)
    for process in _await_end(members):
        with contextlib.suppress(psutil.Error):
            process.kill()
    _await_end(members)


def end_with_the_launcher() -> None:
    """End this process at once when the process that started it is gone, such as a torchrun that was killed."""
    pid = os.getppid()
    if start := start_of(pid):
        _end_with(pid, start, _end_at_once)


def _await_end(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Wait until they have ended, but no longer than GRACE_S; returns those that have not."""
    deadline = time.monotonic() + GRACE_S
    while (left := [process for process in processes if start_of(process.pid)]) and time.monotonic() < deadline:
        time.sleep(GRACE_S / 100)
    return left


def start_of(pid: int) -> str | None:
    """When a process started, to distinguish it from a later one with the same id; None if it has ended."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # State, and ticks since boot, which do not change when the clock is set: proc_pid_stat(5).
        state, ticks = fields[0], fields[19]
        return None if state in "ZX" else ticks
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _end_with(pid: int, start: str, end: Callable[[], object]) -> None:
    threading.Thread(target=_watch, args=(pid, start, end), daemon=True).start()


def _watch(pid: int, start: str, end: Callable[[], object]) -> None:
    while start_of(pid) == start:
        time.sleep(INTERVAL_S)
    end()
