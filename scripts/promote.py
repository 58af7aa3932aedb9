"""Add measured results to the recorded ones: a machine's own folder, or a bundle of somebody else's.

Launch: python -m scripts.promote results/nvidia-h200 recorded
        python -m scripts.promote nvidia-h200.crate.zip recorded

Every file is read and checked first; recorded files of other jobs stay. A folder's own files take the place of earlier
ones; a bundle's never do.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.trace_file import read_trace
from cs336_systems.record.rows import digest_path, read_jobs
from scripts.bundle import CONSTRAINTS
from scripts.card.record import card_files, read_cards, recorded_content
from scripts.limits import TooExpensive
from scripts.log import printable


def promote(results: Path, recorded: Path, *, overwrite: bool = True) -> list[Path]:
    """Copy a machine's CSV files, digests, cards and traces to its recorded ones, and return the copies.

    Args:
        results: the folder of the machine's results, which is named by its label.
        recorded: the folder of its recorded results.
        overwrite: whether recorded files of the same names are replaced. If not, nothing recorded is changed: files
            that are there already must be the same, and the rows of all files must be of different cells.

    Raises:
        ValueError: a file that no measurement on this machine can have written, a symbolic link, neither a CSV file nor
            a card, or a recorded file that must not be replaced; nothing is copied then.
    """
    raw = results / "raw"
    csvs = {
        path: recorded / path.relative_to(results)
        for name in EXPERIMENTS
        for path in sorted((raw / name).glob("*.csv"))
    }
    traces = {path: recorded / path.relative_to(results) for path in sorted((results / "traces").glob("*.json.gz"))}
    digests = {digest_path(path): digest_path(copy) for path, copy in csvs.items()}
    cards = {path: recorded / name for name, path in card_files(results).items()}
    # A digest before its CSV: no CSV ever exists without one.
    copies = digests | csvs | traces | cards
    for path in [*inside(results, copies), *inside(recorded, copies.values())]:
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link; allowed: a file or a folder")
    if not (csvs or cards):
        raise ValueError(f"{raw} has no CSV file of an experiment; allowed: at least one, or a card in {results}")
    if not overwrite:
        pins = results / CONSTRAINTS
        if pins.exists() and not recorded.exists():
            copies[pins] = recorded / CONSTRAINTS
        for path, copy in copies.items():
            if copy.exists() and copy.read_bytes() != recorded_content(path, copy.name):
                raise ValueError(
                    f"{copy} is there already, with other content; allowed: files that are not recorded yet"
                )
    for name, experiment in EXPERIMENTS.items():
        there = [] if overwrite else sorted((recorded / "raw" / name).glob("*.csv"))
        new = [path for path, copy in csvs.items() if path.parent.name == name and copy not in there]
        read_jobs(experiment, [*there, *new], machine=results.name)
    read_cards(results, results.name)
    for trace in traces:
        read_trace(trace)
    for path, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(recorded_content(path, copy.name))
    return list(copies.values())


def promote_bundle(bundle: Path, recorded: Path) -> list[Path]:
    """Copy the results in a bundle to the recorded ones of its machine, once its check has found no failure.

    Args:
        bundle: the file.
        recorded: the folder of all recorded machines.

    Raises:
        ValueError: the check found one, or as `promote` and `opened`; nothing is copied then.
    """
    # Here, since a machine's own results need no checks, whose imports take seconds.
    from scripts.check_bundle import FAILED, findings
    from scripts.read_bundle import opened

    with opened(bundle) as found:
        if failed := [str(finding) for finding in findings(found) if finding.outcome == FAILED]:
            raise ValueError(f"{bundle} is not promoted: {'; '.join(failed)}")
        return promote(found.folder, recorded / found.plan.machine, overwrite=False)


def inside(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """Paths, and the folders inside a folder that lead to them."""
    for path in paths:
        yield path
        yield from (parent for parent in path.parents if folder in parent.parents)


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        copied = promote(source, target / source.name) if source.is_dir() else promote_bundle(source, target)
    except (ValueError, TooExpensive) as error:
        sys.exit(printable(str(error)))
    machine = copied[0].relative_to(target).parts[0]
    print(f"{len(copied)} files from {sys.argv[1]} are now recorded in {target / machine}")
    print("`python -m scripts.docs` adds them to the documentation")
