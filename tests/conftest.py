"""Skips what this machine cannot run, with the reason; finished runs of the pipeline that many tests look at."""

import pytest
import torch

from tests.pipeline import configure_tiny, copy_project, snakemake


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A copy of the project in which `snakemake` has measured tiny grids and typeset the report. Not to be changed."""
    folder = copy_project(tmp_path_factory.mktemp("built") / "project")
    configure_tiny(folder)
    snakemake(folder)
    return folder
