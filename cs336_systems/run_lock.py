"""Snakemake's lock and the temporary files of a run that was killed: removed when it is provably dead, and only then.

Snakemake locks a folder while it works there, and a kill leaves the lock behind, and the folder of temporary files that
the run and its jobs have. A run therefore notes who owns them. Whether that process is alive can be told only in the
same boot of the same machine, in the same PID namespace and by the same user; elsewhere both are left alone, and
Snakemake says how to remove the lock.
"""

import json
import os
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from cs336_systems.lifeline import start_of

OWNER = Path(".snakemake", "lock_owner.json")


def note_owner(locks: Iterable[str | Path], temporary: Path) -> None:
    """Note that this process owns the lock files, and a folder of temporary files."""
    owner = {
        "where": process_space(),
        "pid": os.getpid(),
        "start": start_of(os.getpid()),
        "locks": {str(lock): _identity(Path(lock)) for lock in locks},
        "temporary": str(temporary),
    }
    OWNER.write_text(json.dumps(owner), encoding="utf-8")


def clear_after_dead_owner() -> str:
    """Remove what `note_owner` noted if its owner is provably dead, and say so of a lock; else do nothing."""
    try:
        owner = json.loads(OWNER.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if owner["where"] != process_space() or start_of(owner["pid"]) == owner["start"]:
        return ""
    dead = [Path(lock) for lock, identity in owner["locks"].items() if _identity(Path(lock)) == identity]
    for lock in dead:
        lock.unlink(missing_ok=True)
    shutil.rmtree(owner.get("temporary", ""), ignore_errors=True)
    OWNER.unlink(missing_ok=True)
    return f"Removed the lock of a run that was killed (process {owner['pid']})." if dead else ""


def process_space() -> str:
    """Names the machine, its boot, the PID namespace and the user: what must be shared to see whether a process lives.

    A system may hide other users' processes, which then look as if they had ended.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        boot, namespace = str(round(psutil.boot_time(), -1)), ""
    return f"{socket.gethostname()} {boot} {namespace} {os.getuid()}"


def _identity(path: Path) -> list[int] | None:
    """What changes when a file is replaced by another of the same name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_ino, status.st_mtime_ns]
