"""Add measured results to the recorded ones.

Launch: python -m scripts.promote results/nvidia-h200/raw recorded/nvidia-h200/raw

Every file is read and checked first; recorded files of other jobs stay. Traces are next to `raw`.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.trace_file import read_trace
from cs336_systems.record.rows import digest_path, read_jobs


def promote(raw: Path, recorded: Path) -> list[Path]:
    """Copy the CSV files of a results folder, their digests and the traces to the recorded ones; returns the CSV files.

    Raises:
        ValueError: a file that no measurement on this machine can have written, a symbolic link, or no CSV file at all;
            nothing is copied then.
    """
    csvs = {
        path: recorded / path.relative_to(raw) for name in EXPERIMENTS for path in sorted((raw / name).glob("*.csv"))
    }
    traces = {
        path: recorded.with_name("traces") / path.name for path in sorted(raw.with_name("traces").glob("*.json.gz"))
    }
    digests = {digest_path(path): digest_path(copy) for path, copy in csvs.items()}
    # A digest before its CSV: no CSV ever exists without one.
    copies = digests | csvs | traces
    for path in [*inside(raw.parent, copies), *inside(recorded.parent, copies.values())]:
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link; allowed: a file or a folder")
    if not csvs:
        raise ValueError(f"{raw} has no CSV file of an experiment; allowed: at least one, which `snakemake` measures")
    for name, experiment in EXPERIMENTS.items():
        read_jobs(experiment, [path for path in csvs if path.parent.name == name], machine=raw.parent.name)
    for trace in traces:
        read_trace(trace)
    for path, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return list(csvs.values())


def inside(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """Paths, and the folders inside a folder that lead to them."""
    for path in paths:
        yield path
        yield from (parent for parent in path.parents if folder in parent.parents)


if __name__ == "__main__":
    try:
        copied = promote(Path(sys.argv[1]), Path(sys.argv[2]))
    except ValueError as error:
        sys.exit(str(error))
    print(f"{len(copied)} files from {sys.argv[1]} are now recorded in {sys.argv[2]}")
