"""Make the course's submission and test it: code.zip, whose tests run in an empty folder, and writeup.pdf.

Launch: python -m scripts.stages.submission results/cpu/writeup.pdf submission [FOLDER OF A SOLUTION]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cs336_systems.config import NONE
from scripts.tools.archive import MB, unpack
from scripts.tools.log import shortened

CODE, WRITEUP = "code.zip", "writeup.pdf"
LARGEST_MB = 100
"""Gradescope accepts no larger file."""
SHOWN = 10
"""Largest number of names in a message."""
NO_CHECKOUT = "git cannot pack this folder; allowed: a clone, or after git init; git add .; git commit"


def git(*command: str) -> str:
    """The output of a git command in this folder."""
    return subprocess.run(["git", *command], check=True, capture_output=True, text=True).stdout


def pack(archive: Path) -> None:
    """Write the files that git tracks, as they are now, into a zip archive; links are not followed."""
    try:
        git("ls-files", "--error-unmatch", "Snakefile")
        state = git("stash", "create").strip() or "HEAD"
    except subprocess.CalledProcessError as error:
        sys.exit(f"{NO_CHECKOUT} ({' '.join(error.stderr.split())})")
    git("archive", "--format=zip", f"--output={archive}", state)


def warnings(adapters: str = NONE) -> Iterator[str]:
    """Sentences about a solution in another folder, and about files that differ from the last commit."""
    if adapters != NONE and not Path(adapters).resolve().is_relative_to(Path.cwd()):
        yield f"your solution {adapters} is left out because it is in another folder; hand in its code yourself"
    status = git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", ".").split("\0")
    if changed := [entry[3:] for entry in status if entry and not entry.startswith("??")]:
        yield f"changed since the last commit, and included with the changes: {shortened(changed, SHOWN)}"
    if untracked := [entry[3:] for entry in status if entry.startswith("??")]:
        yield f"left out because git does not track them (git add): {shortened(untracked, SHOWN)}"


def tests_pass(archive: Path) -> bool:
    """Whether `make test` passes in a folder with only an unpacked archive, with this environment's Python."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(archive, Path(folder))
        # Targets assumed old are not made: the environment exists. The package is imported from the folder.
        command = ["make", "--assume-old=.venv/installed", f"BIN={Path(sys.executable).parent}", "test"]
        return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": folder}).returncode == 0


def submit(report: Path, folder: Path, adapters: str = NONE) -> None:
    """Put code.zip and writeup.pdf into a folder, and run the tests of the former.

    Raises:
        SystemExit: this is no checkout; or it is too large, or a test fails, though both files exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive, writeup = folder / CODE, folder / WRITEUP
    pack(archive)
    shutil.copyfile(report, writeup)
    for path in (archive, writeup):
        print(f"{path}: {path.stat().st_size / MB:.1f} MB")
    for sentence in warnings(adapters):
        print(f"{archive}: {sentence}")
    for path in (archive, writeup):
        if path.stat().st_size > LARGEST_MB * MB:
            sys.exit(f"{path} is larger than {LARGEST_MB} MB, the largest file that Gradescope accepts")
    print(f"Running the tests of {archive} in an empty folder", flush=True)
    if not tests_pass(archive):
        sys.exit(f"{archive} cannot be handed in: its tests fail in an empty folder, see above")
    print(f"{archive}: its tests pass in an empty folder")


if __name__ == "__main__":
    try:
        submit(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not installed or does not exist; a submission needs it")
