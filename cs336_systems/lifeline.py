"""A run's jobs end when the run does, even if it was killed: no orphan disturbs the timings of the next run."""

import os
import socket
import threading
import time

import psutil

RUN = "CS336_SYSTEMS_RUN"
"""Environment variable that identifies the run a process belongs to: host, process id and start time."""
INTERVAL_S = 1.0
CLOCK_STEP_S = 2.0
"""How far apart two readings of a start time may be: it is counted from boot time, which moves with the clock."""


def announce_run() -> None:
    """Make this process the run that the processes it starts belong to."""
    process = psutil.Process()
    os.environ[RUN] = f"{socket.gethostname()} {process.pid} {process.create_time()}"


def end_with_the_run() -> None:
    """End this process at once when the run that started it is gone; does nothing outside a run.

    Jobs that a cluster started on another host belong to the cluster, which ends them itself.
    """
    host, _, identity = os.environ.get(RUN, "").partition(" ")
    if host == socket.gethostname():
        pid, _, start = identity.partition(" ")
        threading.Thread(target=_watch, args=(int(pid), float(start)), daemon=True).start()


def is_alive(pid: int, start: float) -> bool:
    """Whether the process with this id is the one that started then, and not a later one with the same id."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - start) < CLOCK_STEP_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _watch(pid: int, start: float) -> None:
    while is_alive(pid, start):
        time.sleep(INTERVAL_S)
    os._exit(1)  # Nobody is left to report to.
