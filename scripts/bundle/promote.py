"""Add measured results to the recorded ones: a machine's own folder, or someone else's bundle.

Launch: python -m scripts.bundle.promote results/nvidia-h200 recorded
        python -m scripts.bundle.promote nvidia-h200.crate.zip recorded

Every file is read and checked first; recorded files of other jobs stay. A folder's own files replace earlier ones; a
bundle's never do.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.trace_file import read_trace
from cs336_systems.run.failure import printable
from scripts.bundle.make import measured_files, read_rows
from scripts.bundle.read import limit, opened, without_folder
from scripts.card.record import read_cards


def promote(results: Path, recorded: Path, *, overwrite: bool = True) -> list[Path]:
    """Copy a machine's CSV files, digests, cards and traces to its recorded ones, and return the copies.

    Args:
        results: the folder of the machine's results.
        recorded: the folder of its recorded results, which is named by its label.
        overwrite: whether recorded files of the same names are replaced. If not, recorded files do not change: files
            that are already recorded must be identical, and the rows of all files must be of different cells.

    Raises:
        ValueError: a file that was not written by a measurement on this machine, a symbolic link, neither a CSV file
            nor a card, or a recorded file that must not be replaced; nothing is copied then.
    """
    csvs, there = csvs_in(results), [] if overwrite else csvs_in(recorded)
    files = measured_files(results, csvs)
    if all(name.startswith("traces/") for name in files):
        raise ValueError(f"{results}/raw has no CSV file of an experiment; allowed: at least one, or a card")
    refuse_links(results, files.values())
    refuse_links(recorded, map(recorded.joinpath, files))
    if other := next((path for path in files.values() if not path.is_file()), None):
        raise ValueError(f"{other} is missing, or is not a file; allowed: a file")
    contents = {recorded / name: path.read_bytes() for name, path in files.items()}
    for copy, content in contents.items():
        if not overwrite and copy.exists() and copy.read_bytes() != content:
            raise ValueError(f"{copy} already exists with other content; allowed: files that are not recorded yet")
    read_rows([*there, *(path for path in csvs if recorded / path.relative_to(results) not in there)], recorded.name)
    read_cards(results, recorded.name)
    for name, path in files.items():
        if name.startswith("traces/"):
            read_trace(path)
    for copy, content in contents.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    return list(contents)


def csvs_in(folder: Path) -> list[Path]:
    """The CSV files of a machine's jobs."""
    return [path for name in EXPERIMENTS for path in sorted((folder / "raw" / name).glob("*.csv"))]


def refuse_links(folder: Path, paths: Iterable[Path]) -> None:
    """Refuse symbolic links to files, and to the folders inside a folder that lead to them."""
    for path in paths:
        for part in (path, *path.parents):
            if folder in part.parents and part.is_symlink():
                raise ValueError(f"{part} is a symbolic link; allowed: a file or a folder")


def promote_bundle(bundle: Path, recorded: Path) -> list[Path]:
    """Copy a bundle's results to the recorded ones of its machine, after its check found no failure.

    Raises:
        ValueError: the check found one, or as `promote` and `opened`; nothing is copied then.
    """
    # Imported here: a machine's own results need no checks, and their imports take seconds.
    from scripts.bundle.check import FAILED, findings

    with opened(bundle) as crate:
        if failed := [str(finding) for finding in findings(crate) if finding.outcome == FAILED]:
            raise ValueError(f"{bundle} is not promoted: {'; '.join(failed)}")
        try:
            return promote(crate.folder, recorded / crate.plan.machine, overwrite=False)
        except ValueError as error:
            raise ValueError(f"{bundle}: {without_folder(error, crate.folder)}") from error


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python -m scripts.bundle.promote SOURCE TARGET copies results or a bundle to recorded ones")
    source, target = map(Path, sys.argv[1:])
    try:
        if source.is_dir():
            copied = promote(source, target / source.name)
        else:
            limit(source)
            copied = promote_bundle(source, target)
    except (ValueError, OSError) as error:
        sys.exit(printable(str(error)))
    machine = copied[0].relative_to(target).parts[0]
    print(f"{len(copied)} files from {source} are now recorded in {target / machine}")
    print("`python -m scripts.docs` adds them to the documentation")
