"""Remove Snakemake's lock and temporary files of a killed run, but only if the run is provably dead.

Snakemake locks a folder while it works there. After a kill, the lock and the run's folder of temporary files remain. So
a run records who owns them, also in that folder: a folder without the record is kept. Whether the owner is alive is
known only in the same boot of the same machine, in the same PID namespace and to the same user; elsewhere both are left
alone, and Snakemake says how to remove the lock.
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
    """Record that this process owns the lock files and a folder of temporary files, which gets the same record."""
    owner = {
        "where": process_space(),
        "pid": os.getpid(),
        "start": start_of(os.getpid()),
        "locks": {str(lock): _identity(Path(lock)) for lock in locks},
        "temporary": str(temporary),
    }
    for folder in (temporary, OWNER.parent):
        (folder / OWNER.name).write_text(json.dumps(owner), encoding="utf-8")


def clear_after_dead_owner() -> str:
    """Remove what `note_owner` recorded if its owner is provably dead, and report a removed lock; else do nothing."""
    try:
        note = OWNER.read_text(encoding="utf-8")
        owner = json.loads(note)
        where, pid, start = owner["where"], int(owner["pid"]), owner["start"]
        locks, temporary = dict(owner["locks"]), Path(owner["temporary"])
    except (OSError, ValueError, KeyError, TypeError):  # There is no lock, or it has no owner.
        return ""
    if where != process_space() or start_of(pid) == start:
        return ""
    dead = [
        Path(lock) for lock, identity in locks.items() if _is_lock(Path(lock)) and _identity(Path(lock)) == identity
    ]
    for lock in dead:
        lock.unlink(missing_ok=True)
    if _has_note(temporary, note):
        shutil.rmtree(temporary, ignore_errors=True)
    OWNER.unlink(missing_ok=True)
    return f"Removed the lock of a run that was killed (process {pid})." if dead else ""


def process_space() -> str:
    """Identify the machine, its boot, the PID namespace and the user, which must agree to see whether a process is
    alive.

    A system may hide other users' processes, which then look as if they had ended.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        boot, namespace = str(round(psutil.boot_time(), -1)), ""
    return f"{socket.gethostname()} {boot} {namespace} {os.getuid()}"


def _is_lock(path: Path) -> bool:
    return path.parent.resolve() == OWNER.with_name("locks").resolve()


def _has_note(folder: Path, note: str) -> bool:
    """Whether a folder contains the same record: a record alone could name any folder."""
    try:
        return not folder.is_symlink() and (folder / OWNER.name).read_text(encoding="utf-8") == note
    except (OSError, ValueError):
        return False


def _identity(path: Path) -> list[int] | None:
    """Identity of a file, which changes if another file with the same name replaces it."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_ino, status.st_mtime_ns]
