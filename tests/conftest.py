"""Skips what this machine cannot run, with the reason."""

import gc

import pytest
import torch

from cs336_systems.lifeline import end_with_the_run
from tests.support.ranks import four_ranks, groups, ranks, two_and_four_ranks  # noqa: F401 - fixtures of all tests

gc.disable()  # Until all tests are collected: modules and test items are no garbage.
end_with_the_run()  # The tests that a run has to pass before it measures end with it, like its jobs.


LONGEST = ("test_writeup.py", "test_golden.py", "test_planted_faults.py", "test_bundle.py")
"""Files that keep a worker busy for longest, but for whole pipelines."""


def pytest_collection_modifyitems(items):
    # What takes long first: at the end it would keep a single worker busy while the others have nothing to do.
    items.sort(key=lambda item: 0 if "workflow" in item.keywords else 1 if item.path.name in LONGEST else 2)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    """Leave modules and test items out of collections of garbage: those of benchmarks, and Python's own."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """Take everything down at the end."""
    gc.unfreeze()
