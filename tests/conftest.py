"""Skips what this machine cannot run, with the reason."""

import atexit
import gc
import os
import sys
from pathlib import Path

import pytest

from cs336_systems.lifeline import end_with_the_run

gc.disable()  # Until all tests are collected: modules and test items are no garbage.
end_with_the_run()  # The tests that a run has to pass before it measures end with it, like its jobs.


FIRST = (
    "workflow/test_additions.py",
    "workflow/test_rebuild.py",
    "attention/test_chips.py",
    "scripts/test_writeup.py",
    "workflow/test_verify.py",
    "scripts/test_golden.py",
    "scripts/test_planted_faults.py",
    "training/test_interpreted.py",
    "attention/test_interpreted.py",
    "scripts/test_bundle.py",
    "scripts/test_figures.py",
)
"""The files that take longest. While one of them makes the finished project, the others need not wait for it."""
assert all((Path(__file__).parent / file).exists() for file in FIRST), "rename the file here too"


def turn(item):
    """When the file of a test has its turn: after those named, other whole pipelines."""
    file = "/".join(item.path.parts[-2:])
    return FIRST.index(file) if file in FIRST else len(FIRST) + ("workflow" not in item.keywords)


def pytest_collection_modifyitems(items):
    # What takes long first: at the end it would keep a single worker busy while the others have nothing to do.
    import torch

    items.sort(key=turn)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_runtest_teardown(item):
    if "gpu" in item.keywords:
        import torch

        torch.cuda.empty_cache()  # The tests of other workers share the GPU.


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The processor, and a GPU where there is one."""
    return request.param


def pytest_collection_finish():
    """Leave modules and test items out of collections of garbage, the benchmarks' and Python's own."""
    gc.freeze()
    gc.enable()


FINISHED = []
"""The exit status, once all tests have run."""


def pytest_sessionfinish(exitstatus):
    FINISHED.append(int(exitstatus))


@atexit.register  # before PyTorch is imported, so that it runs after everything that PyTorch registers
def end_at_once():
    """End without tearing down PyTorch and its compiler, which takes longer than most files of tests."""
    if FINISHED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(*FINISHED)


def pytest_configure(config):
    if not getattr(config.option, "numprocesses", None):  # A process that only hands out tests needs no PyTorch.
        config.pluginmanager.import_plugin("tests.support.ranks")
