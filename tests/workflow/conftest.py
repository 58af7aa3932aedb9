"""A finished project, made once, and copies of it to change."""

import shutil

import pytest

from tests.support.made_once import made_once
from tests.workflow.project import copy_project, snakemake

collect_ignore = ["toy"]  # what a copy of the project gets


@pytest.fixture(scope="session", autouse=True)
def git():
    """Skip without Git, which tells which files of a folder are the project's."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project whose report is made, in a folder whose name is not plain. Not to be changed."""
    return made_once(tmp_path_factory, "a fine ü", lambda folder: snakemake(copy_project(folder)))


@pytest.fixture
def project(finished, tmp_path):
    """A copy of the finished project, Snakemake's records included."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)  # copy2: modification times stay
    return folder
