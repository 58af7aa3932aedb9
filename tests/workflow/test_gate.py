"""Messages of the correctness gate for numeric tests that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.project import NO_CELLS, NUMERIC_TEST, copy_project, environment, replace_numeric_tests

pytest.importorskip("triton")
TOO_LARGE = """import pytest
from triton.runtime.errors import OutOfResources


@pytest.mark.numeric
def test_it():
    raise OutOfResources(131_072, 101_376, "shared memory")
"""
UNMEASURED = "so nothing was measured with it: tests/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("gate"), NO_CELLS, sections=())
    replace_numeric_tests(folder)
    return folder


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("tests", "sentence"),
    [(["large"], "A kernel does not fit this GPU"), (["large", "wrong"], "The code is incorrect on this machine")],
)
def test_a_kernel_that_does_not_fit_is_not_called_incorrect(folder, tests, sentence):
    for name, text in {"large": TOO_LARGE, "wrong": NUMERIC_TEST.format("False")}.items():
        (folder / f"tests/test_{name}.py").write_text(text)
    command = ["bash", "rules/correctness.sh", "results/cpu/correctness", *(f"test_{name}" for name in tests)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the script calls the environment's python
    variables = {**environment(folder), "PATH": path}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{sentence}, {UNMEASURED}"), done.stderr
    assert not list(folder.glob("results/cpu/correctness/test_large-*.txt"))
