"""`snakemake submission`: what is handed in is what git tracks, and its tests run where nothing else is."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.stages.submission import pack_project, told
from scripts.tools.archive import unpack
from scripts.tools.project_files import project_files
from tests.workflow.project import copy_project, snakemake

pytestmark = pytest.mark.workflow

PLANTED = "tests/test_planted.py"
TOLD = (
    "code.zip: changed since the last commit, and included as they are now: CITATION.cff, README.md, tests/planted.py"
)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the project with a report, and a test of a module that git does not track.

    Of an unpacked project only that test is run, since all take minutes.
    """
    folder = copy_project(tmp_path / "checkout")
    (folder / PLANTED).write_text("import tests.planted\n\n\ndef test_it():\n    assert tests.planted\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    (folder / "tests/planted.py").touch()
    (folder / "results/cpu").mkdir(parents=True)
    for name in ("writeup.pdf", "verdict.txt"):
        (folder / "results/cpu" / name).write_text("made before")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--noconftest {PLANTED}")  # PyTorch is not needed
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "1")
    return folder


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
def test_what_git_tracks_is_packed_and_a_forgotten_file_is_noticed(checkout, tmp_path):
    command = [sys.executable, "-m", "scripts.stages.submission", "results/cpu/writeup.pdf", "submission"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    assert "code.zip: left out, since git does not track them (git add): tests/planted.py\n" in done.stdout
    assert "unpacked into an empty folder, its tests fail" in done.stderr

    git(checkout, "add", ".")
    (checkout / "README.md").write_text("changed\n")
    (checkout / "CITATION.cff").unlink()
    printed = snakemake(checkout, "submission", "--allowed-rules", "submission")
    assert TOLD in printed
    assert "code.zip: unpacked into an empty folder, its tests pass" in printed
    assert (checkout / "submission/writeup.pdf").read_text() == "made before"

    archive, unpacked = checkout / "submission/code.zip", tmp_path / "unpacked"
    unpack(archive, unpacked)
    names = ZipFile(archive).namelist()
    assert {"README.md", "tests/planted.py", ".ci/run", ".gitignore"} <= set(names)
    assert not {Path(name).parts[0] for name in names} & {"results", "submission", ".git", ".snakemake", "CITATION.cff"}
    assert not [name for name in names if name.endswith(".pyc")]
    assert (unpacked / "README.md").read_text() == "changed\n"

    # What is unpacked is no checkout, and packs into the same bytes all the same, wherever and whenever.
    (unpacked / "results").mkdir()
    (unpacked / "results/ignored.csv").touch()
    found = project_files(unpacked)
    assert "not a git repository" in found.no_checkout
    assert found.own == names == project_files(checkout).own
    pack_project(unpacked, found.own, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    programs = {path.name for path in (unpacked / "rules").iterdir() if path.stat().st_mode & 0o100}
    assert programs == {"compare.sh", "correctness.sh", "torchrun.sh"}


def test_a_repository_around_the_project_does_not_count(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/Snakefile").touch()
    found = project_files(tmp_path / "project")
    assert (found.own, found.no_checkout) == (["Snakefile"], "git tracks no Snakefile here")


SECRETS = [
    ".env",
    "id_rsa",
    "notes.md",
    "cs336_systems/.env",
    "scripts/id_ed25519",
    "recorded/wages.csv",
    "docs/key.pem",
]


def test_outside_git_only_the_projects_own_files_are_packed_and_the_others_named(tmp_path):
    for name in ["Snakefile", "cs336_systems/model.py", *SECRETS]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    found = project_files(tmp_path)
    assert found.own == ["Snakefile", "cs336_systems/model.py"]
    assert found.others == sorted(SECRETS)
    *_, sentence = told(found)
    assert sentence.startswith(
        "left out, since git does not track them (git init; git add): .env, cs336_systems/.env, "
    )


@pytest.mark.parametrize("checkout", [False, True])
def test_links_are_not_followed(tmp_path, checkout):
    folder, secret = tmp_path / "project", tmp_path / "secret"
    secret.mkdir()
    (secret / "key.py").write_text("secret")
    for name in ("Snakefile", "scripts/own.py", "tests/key.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "scripts/key.py").symlink_to(secret / "key.py")
    (folder / "scripts/gone.py").symlink_to(secret / "gone.py")
    if checkout:
        git(folder, "init", "--quiet")
        git(folder, "add", ".")
    # What git tracks as a folder is none any more.
    (folder / "tests/key.py").unlink()
    (folder / "tests").rmdir()
    (folder / "tests").symlink_to(secret)
    (tmp_path / "link").symlink_to(folder)  # to the project is no harm
    found = project_files(tmp_path / "link")
    assert found.own == ["Snakefile", "scripts/own.py"]
    assert found.links == ["scripts/gone.py", "scripts/key.py", *(["tests/key.py"] if checkout else [])]
    assert "left out, since they are symbolic links: scripts/gone.py, scripts/key.py" in "\n".join(told(found))
