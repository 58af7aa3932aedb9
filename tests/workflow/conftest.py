"""A finished project, made once, and copies of it to change."""

import shutil

import pytest

from tests.support.made_once import made_once
from tests.workflow.project import GRIDS, copy_project, replace_numeric_tests, snakemake

collect_ignore = ["toy"]  # what a copy of the project gets


@pytest.fixture(scope="session", autouse=True)
def git():
    """Skip without Git, which knows the project's files."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project whose report is made, in a folder whose name is not plain. Not to be changed."""

    def make(folder):
        # Those that pass take longer than what is measured here.
        replace_numeric_tests(copy_project(folder), *GRIDS)
        snakemake(folder)

    return made_once(tmp_path_factory, "a fine ü", make)


@pytest.fixture
def project(finished, tmp_path):
    """A copy of the finished project, Snakemake's records included."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)  # copy2: modification times stay
    return folder
