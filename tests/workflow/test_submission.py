"""`snakemake submission`: what is handed in is what git tracks, and its tests run where nothing else is."""

import subprocess
import sys
from zipfile import ZipFile

import pytest

from scripts.stages.submission import pack
from tests.workflow.project import copy_project, snakemake

pytestmark = pytest.mark.workflow

PLANTED = "tests/test_planted.py"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the project with a report, and a test of a module that git does not track.

    Of an unpacked project only that test is run, since all take minutes.
    """
    folder = copy_project(tmp_path / "checkout")
    (folder / PLANTED).write_text(
        "import os, tests.planted\n\n\ndef test_it():\n    assert os.access('rules/torchrun.sh', os.X_OK)\n"
    )
    commit(folder)
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


def commit(folder):
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")


@pytest.mark.slow
def test_what_git_tracks_is_packed_and_a_forgotten_file_is_noticed(checkout):
    command = [sys.executable, "-m", "scripts.stages.submission", "results/cpu/writeup.pdf", "submission", "../mine"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    assert "code.zip: left out because git does not track them (git add): tests/planted.py\n" in done.stdout
    assert "code.zip: your solution ../mine is left out because it is in another folder; hand in" in done.stdout
    assert "its tests fail in an empty folder" in done.stderr

    git(checkout, "add", ".")
    (checkout / "README.md").write_text("changed\n")
    (checkout / "CITATION.cff").unlink()
    printed = snakemake(checkout, "submission", "--allowed-rules", "submission")
    changed = (
        "changed since the last commit, and included with the changes: CITATION.cff, README.md, tests/planted.py\n"
    )
    assert f"code.zip: {changed}" in printed
    assert "code.zip: its tests pass in an empty folder" in printed
    assert (checkout / "submission/writeup.pdf").read_text() == "made before"

    archive = ZipFile(checkout / "submission/code.zip")
    names = archive.namelist()
    assert {"README.md", "tests/planted.py", ".ci/run", ".gitignore"} <= set(names)
    assert not {name.partition("/")[0] for name in names} & {"results", "submission", ".git", ".snakemake"}
    assert not [name for name in names if name.endswith((".pyc", "CITATION.cff"))]
    assert archive.read("README.md") == b"changed\n"


@pytest.mark.parametrize("tracked", [[], ["git of another project"], ["Snakefile"]])
def test_only_a_checkout_of_the_project_can_be_handed_in(tmp_path, monkeypatch, tracked):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Snakefile").touch()
    monkeypatch.chdir(folder)
    if tracked:
        git(tmp_path, "init", "--quiet")
    if "Snakefile" in tracked:
        git(tmp_path, "add", ".")
    with pytest.raises(SystemExit, match="git cannot pack this folder; allowed: a clone, or after git init;"):
        pack(tmp_path / "code.zip")


def test_links_are_not_followed(tmp_path, monkeypatch):
    folder, secret = tmp_path / "project", tmp_path / "secret"
    for path in (folder / "Snakefile", folder / "key.py", secret / "key.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"in {path.parent.name}")
    commit(folder)
    (folder / "key.py").unlink()
    (folder / "key.py").symlink_to(secret / "key.py")
    monkeypatch.chdir(folder)
    pack(tmp_path / "code.zip")
    assert "in secret" not in ZipFile(tmp_path / "code.zip").read("key.py").decode()
