"""Messages of the correctness gate for numeric tests that fail."""

import os
import shutil
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
    done = run_gate(folder, *tests)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{sentence}, {UNMEASURED}"), done.stderr
    assert not list(folder.glob("results/cpu/correctness/test_large-*.txt"))


@pytest.mark.workflow
def test_what_the_run_has_tested_is_tested_again_once_it_is_edited(folder):
    test = folder / "tests/test_edited.py"
    test.write_text(NUMERIC_TEST.format("False"))
    tested = folder / "tested"
    tested.touch()
    assert run_gate(folder, "edited", CS336_SYSTEMS_TESTED=str(tested)).returncode == 0
    shutil.copy2(test, folder / "cs336_systems/copied.py")  # with the time of the last change
    assert run_gate(folder, "edited", CS336_SYSTEMS_TESTED=str(tested)).returncode == 1


def run_gate(folder, *tests, **variables):
    command = ["bash", "rules/correctness.sh", "results/cpu/correctness", *(f"test_{name}" for name in tests)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the script calls the environment's python
    variables = {**environment(folder), "PATH": path, **variables}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
