"""Show that measured code is that of an earlier commit but for renames, so that rows measured then stay valid.

Launch: python -m scripts.same_code 1854fa7 --machine nvidia-h200

For each planned job, the syntax trees of all modules that measure it are compared, at the commit and in the working
tree, with the renames that scripts/renames.yaml lists for that commit. Digests of equal code are added to
recorded/<machine>/same_code.csv; jobs whose code differs by more are named, and their rows stay those of earlier code.
"""

import argparse
import ast
import csv
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from cs336_systems.plan import Job, make_plan, recorded_modules
from cs336_systems.record.source import Source, digest_of, find_sources, is_bare_string, measured_tree
from cs336_systems.yaml_file import read_mapping
from scripts.syntax_trees import Known, Renames, require_same

TABLE = Path("scripts/renames.yaml")
COLUMNS = ("job", "old_digest", "new_digest", "commit")
Row = tuple[str, ...]


def compare_jobs(commit: str, machine: str) -> tuple[list[Row], list[str]]:
    """Compare the code of a recorded machine's planned jobs.

    Returns:
        a row of COLUMNS for each job whose code is the same, and for each other one a sentence that says why it is not.
    """
    renames = Renames(**read_mapping(TABLE)[commit])
    config = read_mapping(Path("config.yaml")) | {"recorded": machine}
    plan = make_plan(config)
    rows: list[Row] = []
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "cs336_systems"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        launches: dict[tuple[tuple[str, ...], ...], list[Job]] = {}
        for job in plan.all_jobs():
            launches.setdefault(recorded_modules(job.cells, None), []).append(job)
        for (modules, unused), jobs in launches.items():
            try:
                digests = same_digests(modules, unused, renames, folder)
            except ValueError as error:
                refused += [f"{job.path}: {error}" for job in jobs]
            else:
                rows += [(job.path, *digests, commit) for job in jobs]
    return rows, refused


def same_digests(modules: Collection[str], unused: Collection[str], renames: Renames, folder: str) -> tuple[str, str]:
    """The digests of a launch's code in a folder that has its older version, and in the working tree.

    Raises:
        ValueError: they differ by more than renames.
    """
    new = find_sources(modules, unused, [""])
    old = find_sources([*map(renames.old_module, modules)], [*map(renames.old_module, unused)], [folder])
    require_same_sources(old, new, renames)
    return digest_of(old), digest_of(new)


def require_same_sources(old: Mapping[str, Source], new: Mapping[str, Source], renames: Renames) -> None:
    """Compare two versions of all modules that a digest covers.

    Raises:
        ValueError: they differ by more than renames, in one sentence that names the module.
    """
    before = {module: tree for module, source in old.items() if (tree := code_of(source))}
    after = {renames.old_module(module): (module, tree) for module, source in new.items() if (tree := code_of(source))}
    if before.keys() != after.keys():
        raise ValueError(f"only one of the versions has {', '.join(sorted(before.keys() ^ after.keys()))}")
    shared: Known = {}
    for old_name, tree in before.items():
        name, new_tree = after[old_name]
        packages = package_of(old_name, old), package_of(name, new)
        try:
            require_same(tree, new_tree, packages, renames, shared)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def code_of(source: Source) -> ast.Module | None:
    """A module's syntax tree; None if it is only a docstring, as packages of modules are."""
    tree = measured_tree(source.path)
    return None if all(map(is_bare_string, tree.body)) else tree


def package_of(module: str, sources: Mapping[str, Source]) -> str:
    """The package that a module's relative imports start from."""
    return module if sources[module].path.name == "__init__.py" else module.rpartition(".")[0]


def write(file: Path, rows: Iterable[Row]) -> None:
    """Add rows to a table, in the place of earlier ones of the same job and commit."""
    kept: dict[Row, Row] = {}
    if file.exists():
        with file.open(newline="", encoding="utf-8") as lines:
            found = [tuple(row[name] for name in COLUMNS) for row in csv.DictReader(lines)]
        kept = {(row[0], row[1], row[3]): row for row in found}
    kept |= {(row[0], row[1], row[3]): row for row in rows if row[1] != row[2]}
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(kept.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.same_code", description=__doc__)
    parser.add_argument("commit", choices=list(read_mapping(TABLE)), help="the commit to compare with")
    parser.add_argument("--machine", default="nvidia-h200", help="the recorded machine whose jobs are compared")
    arguments = parser.parse_args()
    same, different = compare_jobs(arguments.commit, arguments.machine)
    written = Path("recorded", arguments.machine, "same_code.csv")
    write(written, same)
    print(f"{len(same)} jobs have the code of {arguments.commit}: {written}")
    sys.exit("\n".join(different) or None)
