"""Clears what a killed run leaves behind, so that the same command simply goes on."""

import contextlib
from pathlib import Path

import psutil


def clear_leftovers(folder: Path = Path()) -> None:
    """Stop measurements whose Snakemake is gone, and drop its lock, unless another Snakemake works in the folder.

    A measurement that runs on without its Snakemake would disturb the timings of the one that replaces it.
    """
    here = folder.resolve()
    mine = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    others = [process for process in psutil.process_iter() if process.pid not in mine and _folder(process) == here]
    if any(_is_snakemake(process) for process in others):
        return
    orphans = [process for job in others if _is_job(job) for process in [job, *_descendants(job)]]
    for process in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(orphans, timeout=10)
    for lock in (here / ".snakemake" / "locks").glob("*.lock"):
        lock.unlink(missing_ok=True)


def _folder(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except (psutil.Error, OSError):
        return None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_snakemake(process: psutil.Process) -> bool:
    """Whether a process is Snakemake's main program (`snakemake …` or `python -m snakemake …`)."""
    return any(Path(word).name == "snakemake" for word in _command(process)[:3])


def _is_job(process: psutil.Process) -> bool:
    """Whether a process is a measurement that a rule started, or the shell around it: it writes into results."""
    command = " ".join(_command(process))
    return "cs336_systems.benchmarks." in command and "--output results/" in command


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
