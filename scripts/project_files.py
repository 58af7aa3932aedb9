"""The project's own files, by what git knows: nothing that a run generated, and nothing that git ignores."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ALWAYS = "Snakefile"
"""A file that every checkout of the project tracks, and a repository of something else around the folder does not."""


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """Names relative to the project's folder."""

    own: list[str]
    """What git tracks, also in submodules; where the folder is no checkout, all that `.gitignore` does not name."""
    untracked: list[str]
    """What git neither tracks nor ignores."""
    changed: list[str]
    """The tracked files that are not as in the last commit, or are gone."""
    no_checkout: str
    """Why the folder is no checkout; empty if it is one."""


def project_files(folder: Path) -> ProjectFiles:
    """The files in the project's folder.

    Raises:
        FileNotFoundError: git is not installed.
    """
    listing = _git(folder, "ls-files", "-z", "--recurse-submodules", check=False)
    tracked = _split(listing.stdout)
    if ALWAYS in tracked:
        status = _git(folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--", ".")
        return ProjectFiles(
            own=_present(folder, tracked),
            untracked=_unknown(folder),
            changed=[entry[len("XY ") :] for entry in _split(status.stdout)],
            no_checkout="",
        )
    with tempfile.TemporaryDirectory() as empty:
        _git(folder, "init", "--quiet", "--bare", empty)
        own = _unknown(folder, f"--git-dir={empty}", f"--work-tree={folder.absolute()}")
    complaint = listing.stderr.strip().partition("\n")[0] or f"git tracks no {ALWAYS} here"
    return ProjectFiles(own=_present(folder, own), untracked=[], changed=[], no_checkout=complaint)


def _unknown(folder: Path, *options: str) -> list[str]:
    return _split(_git(folder, *options, "ls-files", "-z", "--others", "--exclude-standard").stdout)


def _git(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *command], cwd=folder, check=check, capture_output=True, text=True)


def _split(names: str) -> list[str]:
    return list(filter(None, names.split("\0")))


def _present(folder: Path, names: list[str]) -> list[str]:
    return sorted(name for name in names if (folder / name).is_file())
