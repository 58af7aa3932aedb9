"""The project's own files: those that git tracks or, without git, those with certain names; no generated files."""

import os
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ALWAYS = "Snakefile"
"""A file that every checkout of the project tracks, but an unrelated repository around the folder does not."""
PATTERNS = (
    "Snakefile", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "config.yaml",
    "pyproject.toml", ".gitignore", ".pre-commit-config.yaml", ".ci/run", ".github/*.yml",
    "cs336_systems/*.py", "cs336_systems/py.typed", "cs336_systems/*.json",
    "cs336_systems/revisions.yaml",
    "mkdocs.yml", "notes/*.md", "docs/*.md", "docs/*.png", "docs/*.svg", "docs/*.dot",
    "examples/*.py", "examples/*.yaml",
    "profiles/*/config.yaml", "profiles/*/nodes.yaml",
    "recorded/*/constraints.txt", "recorded/*/raw/*/*.csv", "recorded/*/raw/*/*.csv.sha256",
    "recorded/*/traces/*.json.gz", "recorded/*/not_measured.yaml",
    "report/contents.yaml", "report/references.bib", "report/*.typ", "report/*.typ.j2", "report/*.html.j2",
    "report/web/*.css", "report/web/*.js",
    "report/captions/*.rst",
    "rules/*.smk", "rules/*.sh",
    "scripts/*.py",
    "tests/*.py", "tests/cluster/*.sh", "tests/data/*.json", "tests/data/*.yaml",
    "tests/data/*.csv", "tests/golden/*.csv",
    "tests/compare/*.csv", "tests/compare/*.csv.sha256", "tests/samples/*.csv", "tests/samples/*.csv.sha256",
    "tests/golden/*.txt", "tests/golden/*.typ", "tests/traces/*.json.gz", "tests/workflow/toy/*.yaml",
    "tests/workflow/toy/*.typ.j2",
)  # fmt: skip
"""Names of the project's own files, used without git; * also matches folders."""
OTHERS = {".git", ".venv", ".snakemake", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", "submission"}
"""Folders of generated files, like `results`, but at any depth."""


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """Names relative to the project's folder."""

    own: list[str]
    """Files that git tracks, also in submodules, but no links; without a checkout, those that match PATTERNS."""
    links: list[str]
    """Such files that are symbolic links, or in a linked folder: their targets may be anyone's files."""
    others: list[str]
    """Files that git neither tracks nor ignores, or that do not match PATTERNS."""
    changed: list[str]
    """The tracked files that were changed or deleted since the last commit."""
    no_checkout: str
    """Why the folder is not a checkout; empty if it is one."""


def project_files(folder: Path) -> ProjectFiles:
    """The files in the project's folder.

    Raises:
        FileNotFoundError: git is not installed.
    """
    listing = _git(folder, "ls-files", "-z", "--recurse-submodules", check=False)
    tracked = _split(listing.stdout)
    if ALWAYS in tracked:
        status = _git(folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--", ".")
        others = _split(_git(folder, "ls-files", "-z", "--others", "--exclude-standard").stdout)
        changed, complaint = [entry[len("XY ") :] for entry in _split(status.stdout)], ""
    else:
        found = _files(folder)
        tracked = [name for name in found if any(fnmatchcase(name, pattern) for pattern in PATTERNS)]
        others, changed = sorted(set(found) - set(tracked)), []
        complaint = listing.stderr.strip().partition("\n")[0] or f"git tracks no {ALWAYS} here"
    files = sorted(name for name in tracked if (folder / name).is_file() or (folder / name).is_symlink())
    own = [name for name in files if _is_in_place(folder, name)]
    return ProjectFiles(
        own=own, links=sorted(set(files) - set(own)), others=others, changed=changed, no_checkout=complaint
    )


def _is_in_place(folder: Path, name: str) -> bool:
    """Whether neither a file nor a folder above it is a link."""
    return (folder / name).resolve() == folder.resolve() / name


def _files(folder: Path) -> list[str]:
    """The files and links below a folder, except those in generated folders and behind links."""
    names = []
    for path, folders, files in os.walk(folder):
        inside = Path(path).relative_to(folder)
        generated = OTHERS | {"results", "build"} if inside == Path() else OTHERS
        folders[:] = sorted(set(folders) - generated)
        links = [name for name in folders if Path(path, name).is_symlink()]  # which os.walk does not follow
        names += [(inside / name).as_posix() for name in (*files, *links)]
    return sorted(names)


def _git(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *command], cwd=folder, check=check, capture_output=True, text=True)


def _split(names: str) -> list[str]:
    return list(filter(None, names.split("\0")))
