"""The tests of kernels again, in Triton's interpreter, which must be chosen before kernels are defined."""

import subprocess
import sys

from tests.support.interpreter import ROOT, interpreter_environment

FILES = (
    *("tests/accounting/test_leaderboard.py", "tests/test_folder_modules.py::interpreted"),
    *(f"tests/training/test_{name}.py" for name in ("derivatives", "fused_model", "rms_norm", "rope", "swiglu")),
    *(f"tests/training/test_{name}.py::interpreted" for name in ("adamw", "fp8", "linear_cross_entropy")),
)
"""Files whose tests are run again, and tests that are only run here."""


def test_kernels_pass_their_tests_in_the_interpreter():
    # All in one process: it takes longer to start than most of these tests.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", "-p", "no:cacheprovider"]
    command += ["-o", "python_functions=test interpreted", *FILES]
    run = subprocess.run(command, cwd=ROOT, env=interpreter_environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
