"""Measure a small grid in several launches: honest runs of one machine, which differ by run-to-run variation alone.

Launch: python -m scripts.repeated_launches FOLDER [--launches 2] [--device cuda]

Writes FOLDER/1/raw, FOLDER/2/raw and so on: result folders for `python -m cs336_systems.compare`. On one GPU a launch
takes about 45 s, on two cores about a minute.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

GRIDS = {
    "cuda": {
        "flash/shapes": "--sequence 4096 16384 --d 64 128 --heads 16 --implementation triton sdpa_flash sdpa_cudnn",
        "end_to_end/eager": "--size medium large --context 1024 --precision fp32 bf16 --mode train_step",
        "end_to_end/flash": "--size large --context 1024 --precision bf16 --attention flash --mode train_step",
    },
    "cpu": {
        "flash/shapes": "--sequence 256 512 --d 32 64 --implementation plain sdpa_flash tiled --precision fp32",
        "end_to_end/eager": "--size nano micro --context 64 128 --precision fp32 bf16 --batch-size 2 --vocab-size 1000",
    },
}
"""Options of the jobs of a launch, by device and by EXPERIMENT/JOB."""


def launch(folder: Path, device: str) -> None:
    """Run each job of the grid in a process of its own.

    Raises:
        CalledProcessError: a job has failed; it has printed why.
    """
    for job, options in GRIDS[device].items():
        begin = time.monotonic()
        output = folder / "raw" / f"{job}.csv"
        module = f"cs336_systems.benchmarks.{job.partition('/')[0]}"
        command = [sys.executable, "-m", module, *shlex.split(options), "--device", device, "--output", str(output)]
        subprocess.run(command, check=True)
        print(f"{output}: {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    """Launch the grid as often as the command line asks."""
    parser = argparse.ArgumentParser(description="Measure a small grid in several launches.")
    parser.add_argument("folder", type=Path, help="where the launches are kept: FOLDER/1/raw, FOLDER/2/raw, ...")
    parser.add_argument("--launches", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("--device", choices=list(GRIDS), default="cuda", help="what is measured (default: cuda)")
    options = parser.parse_args()
    for index in range(options.launches):
        launch(options.folder / str(index + 1), options.device)


if __name__ == "__main__":
    main()
