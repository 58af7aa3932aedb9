"""Make the course's submission and test it: code.zip, whose tests run in an empty folder, and writeup.pdf.

Launch: python -m scripts.stages.submission results/cpu/writeup.pdf submission
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.tools.archive import MB, pack, unpack
from scripts.tools.log import shortened
from scripts.tools.project_files import ProjectFiles, project_files

CODE, WRITEUP = "code.zip", "writeup.pdf"
LARGEST_MB = 100
"""Gradescope accepts no larger file."""
SHOWN = 10
"""Largest number of names in a message."""


def pack_project(folder: Path, names: Sequence[str], archive: Path) -> None:
    """Pack the named files of the project's folder, with the modes of executables."""
    programs = [name for name in names if os.access(folder / name, os.X_OK)]
    pack(archive, {name: (folder / name).read_bytes() for name in names}, programs=programs)


def tests_pass(archive: Path) -> bool:
    """Whether `make test` passes in a folder with only an unpacked archive, with this environment's Python."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(archive, Path(folder))
        # Targets assumed old are not made: the environment exists. The package is imported from the folder.
        command = ["make", "--assume-old=.venv/installed", f"BIN={Path(sys.executable).parent}", "test"]
        return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": folder}).returncode == 0


def told(found: ProjectFiles) -> list[str]:
    """Warnings about the files to hand in, in sentences."""
    sentences = []
    if found.no_checkout:
        sentences.append(f"no git checkout ({found.no_checkout}), so it has only files with the project's own names")
    if found.changed:
        sentences.append(
            f"changed since the last commit, and included as they are now: {shortened(found.changed, SHOWN)}"
        )
    if found.links:
        sentences.append(f"left out, since they are symbolic links: {shortened(found.links, SHOWN)}")
    if found.others:
        how = "git init; git add" if found.no_checkout else "git add"
        sentences.append(f"left out, since git does not track them ({how}): {shortened(found.others, SHOWN)}")
    return sentences


def submit(report: Path, folder: Path) -> None:
    """Put code.zip and writeup.pdf into a folder, and run the tests of the former.

    Raises:
        SystemExit: it is too large, or a test fails; both files exist nevertheless.
    """
    project = Path()
    found = project_files(project)
    folder.mkdir(parents=True, exist_ok=True)
    archive, writeup = folder / CODE, folder / WRITEUP
    shutil.copyfile(report, writeup)
    pack_project(project, found.own, archive)
    print(f"{archive}: {len(found.own)} files, {archive.stat().st_size / MB:.1f} MB")
    for sentence in told(found):
        print(f"{archive}: {sentence}")
    print(f"{writeup}: {report}, {writeup.stat().st_size / MB:.1f} MB")
    for path in (archive, writeup):
        if path.stat().st_size > LARGEST_MB * MB:
            sys.exit(f"{path} is larger than {LARGEST_MB} MB, the largest file that Gradescope accepts")
    print(f"Running the tests of {archive} in an empty folder", flush=True)
    if not tests_pass(archive):
        sys.exit(f"{archive} cannot be handed in: unpacked into an empty folder, its tests fail, see above")
    print(f"{archive}: unpacked into an empty folder, its tests pass")


if __name__ == "__main__":
    try:
        submit(Path(sys.argv[1]), Path(sys.argv[2]))
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not installed or does not exist; a submission needs it")
