"""Add measured results to the recorded ones.

Launch: python -m scripts.promote results/nvidia-h200/raw recorded/nvidia-h200/raw

Every CSV file is read and checked first; recorded files of other jobs stay. Traces are next to `raw`.
"""

import shutil
import sys
from pathlib import Path

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import digest_path, read_jobs


def promote(raw: Path, recorded: Path) -> list[Path]:
    """Copy the CSV files of a results folder, their digests and the traces to the recorded ones; returns the CSV files.

    Raises:
        ValueError: a file that no measurement on this machine can have written; nothing is copied then.
    """
    found = {name: sorted((raw / name).glob("*.csv")) for name in EXPERIMENTS}
    for name, csvs in found.items():
        read_jobs(EXPERIMENTS[name], csvs, machine=raw.parent.name)
    copies = []
    for name, csvs in found.items():
        for csv in csvs:
            copies.append(recorded / name / csv.name)
            copies[-1].parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(digest_path(csv), digest_path(copies[-1]))
            shutil.copy2(csv, copies[-1])
    if (traces := raw.with_name("traces")).is_dir():
        shutil.copytree(traces, recorded.with_name("traces"), dirs_exist_ok=True)
    return copies


if __name__ == "__main__":
    try:
        copied = promote(Path(sys.argv[1]), Path(sys.argv[2]))
    except ValueError as error:
        sys.exit(str(error))
    print(f"{len(copied)} files from {sys.argv[1]} are now recorded in {sys.argv[2]}")
