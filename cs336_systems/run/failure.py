"""Explain in a sentence why a command failed.

Launch: python -m cs336_systems.run.failure 137 results/cpu/logs/accumulation/all.log. A rule runs it after its command
has ended with that status: it prints what is missing from the log that Snakemake shows.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

FULL_MB = 1
"""A disk with less free space than this counts as full."""
SHARED_MEMORY = Path("/dev/shm")
"""Where the ranks of a launch and the workers of a compiler exchange data, on Linux; 64 MB in many containers."""
SHELL_ADDS = 128
"""Offset that a shell adds to a signal's number in an exit status."""
CAUSES = {
    signal.SIGKILL: "by hand, by a job scheduler, or by the OOM killer because a memory limit was reached",
    signal.SIGTERM: "by hand or by a job scheduler, perhaps because its time was up",
    signal.SIGINT: "by Ctrl-C",
    signal.SIGHUP: "because its terminal was closed",
    signal.SIGSEGV: "a crash in native code: a bug in a library or driver",
    signal.SIGABRT: "native code aborted: the reason is in the log",
    signal.SIGBUS: "a crash in native code: often because a disk or shared memory is full",
    signal.SIGILL: "an instruction that this processor lacks",
    signal.SIGFPE: "an integer division by zero in native code",
    signal.SIGXCPU: "the limit on CPU time was reached",
    signal.SIGXFSZ: "the limit on file size was reached",
}


def describe_end(status: int) -> str:
    """Describe how a command ended, from its exit status as Python or a shell reports it.

    >>> describe_end(-9) == describe_end(137)
    True
    """
    number = -status if status < 0 else status - SHELL_ADDS
    try:
        ended = signal.Signals(number)
    except ValueError:
        return f"ended with exit status {status}"
    return f"was ended by {ended.name} ({CAUSES.get(ended, 'a signal')})"


def full_disks(folders: Iterable[Path]) -> list[str]:
    """Return a sentence for each folder on a full disk; for several on one disk, only for the first."""
    sentences: dict[int, str] = {}
    for folder in folders:
        there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
        free, status = shutil.disk_usage(there).free / 1e6, os.statvfs(there)
        if free < FULL_MB:
            reason = f"the disk of {folder} is full: {free:.1f} MB are free"
        elif status.f_files and not status.f_favail:
            reason = f"the disk of {folder} is full: no inodes are free"
        else:
            continue
        sentences.setdefault(there.stat().st_dev, reason)
    return list(sentences.values())


def printable(line: str) -> str:
    """A line that may quote anybody's text, without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def places() -> list[Path]:
    """Folders that a run writes to, other than its results."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    return [temporary, SHARED_MEMORY] if SHARED_MEMORY.is_dir() else [temporary]


def explain(status: int, log: Path) -> list[str]:
    """Explain a failed command, in sentences that complement its log."""
    sentences = []
    empty = not log.is_file() or not log.read_bytes().strip()
    if empty:
        sentences.append(f"the command {describe_end(status)}, and its log, {log}, is empty")
    elif status > SHELL_ADDS:
        sentences.append(f"the command {describe_end(status)}; its log is {log}")
    return [*sentences, *full_disks([log.parent, *places()])]


if __name__ == "__main__":
    for sentence in explain(int(sys.argv[1]), Path(sys.argv[2])):
        print(f"{sentence[0].upper()}{sentence[1:]}.", file=sys.stderr)
    sys.exit(1)
